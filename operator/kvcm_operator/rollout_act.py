"""Speak to the single pods of a manager, and carry out the one step that was planned. No decisions.

What is about to happen is told as an Event before it happens: an operator that ends in between tells it again, and that is one Event.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from kvcm.client.admin_types import ClusterInfo
from kvcm.common.errors import KvcmError
from kvcm.resources.conditions import Reason
from kvcm_operator.admin import AdminTrouble, Silent, Speaker
from kvcm_operator.passes import event
from kvcm_operator.rollout import LOOK_S, Plan
from kvcm_operator.rollout_fleet import Fleet, Node
from kvcm_operator.rollout_handover import KEEP_OUT_MS, Handover
from kvcm_operator.rollout_leader import Leadership, leadership
from kvcm_operator.rollout_warm import cold
from kvcm_operator.subject import Subject
from kvcm_operator.world import AdminApi, KubeForbidden, Ref, World

ASK_S = 3.0
MAX_ASKED = 64
_log = logging.getLogger("kvcm.operator.rollout")


@dataclass(frozen=True, slots=True)
class Heard:
    """What the pods say. `cold`: those that could not take over at once."""

    leader: Leadership
    cold: frozenset[str]


async def hear(subject: Subject, world: World, fleet: Fleet) -> Heard:
    """Ask every pod that can be asked, all at once. Raises KubeForbidden."""
    asked = [node for node in fleet.living if node.host][:MAX_ASKED]
    words: dict[str, ClusterInfo] = {}
    if asked:
        try:
            async with world.admin.connect_nodes(subject.ref.namespace, subject.ref.name, [node.door for node in asked]) as apis:
                answers = await asyncio.gather(*map(_word, apis))
        except KubeForbidden:
            raise
        except KvcmError as error:
            _log.warning("pods_not_asked manager=%s/%s: %s", subject.ref.namespace, subject.ref.name, error.message)
        else:
            words = {node.name: info for node, info in zip(asked, answers, strict=True) if info is not None}
    return Heard(leadership(fleet, words), cold(fleet, words))


async def carry_out(subject: Subject, world: World, found: Plan, before: Handover | None) -> Plan:
    """The step of a plan, if it has one, and what is left to say. Raises what the API server raises."""
    if found.replace is not None:
        await _replace(subject, world, found.replace)
    elif found.demote is not None:
        return await _demote(subject, world, found, found.demote, before)
    return found


async def _replace(subject: Subject, world: World, node: Node) -> None:
    message = f"replacing pod {node.name} by one with the new settings and volumes"
    await world.kube.emit(event(subject, "Normal", Reason.ROLLING_OUT.value, message))
    _log.info("pod_replaced manager=%s/%s pod=%s", subject.ref.namespace, subject.ref.name, node.name)
    await world.kube.delete(Ref("Pod", subject.ref.namespace, node.name), node.uid)


async def _demote(subject: Subject, world: World, found: Plan, node: Node, before: Handover | None) -> Plan:
    message = f"asking pod {node.name} to give up leadership before it is replaced or stopped"
    await world.kube.emit(event(subject, "Normal", Reason.HANDING_OVER.value, message))
    try:
        async with world.admin.connect_nodes(subject.ref.namespace, subject.ref.name, [node.door]) as (api,):
            if api is None:
                raise Silent("the Secret with its token or certificate is not as it must be")
            stepped = await Speaker(api).step_down(KEEP_OUT_MS)
    except AdminTrouble as error:
        _log.warning("demotion_not_asked manager=%s/%s pod=%s: %s", subject.ref.namespace, subject.ref.name, node.name, error.message)
        sentence = f"pod {node.name} leads and cannot be asked to give that up: {error.message}"
        return replace(found, message=sentence, again_s=world.pace.retry, handover=before)
    _log.info("demotion_asked manager=%s/%s pod=%s led=%s", subject.ref.namespace, subject.ref.name, node.name, stepped)
    # One that did not lead any more was not asked for anything.
    return replace(found, again_s=LOOK_S, handover=found.handover if stepped else before)


async def _word(api: AdminApi | None) -> ClusterInfo | None:
    if api is None:
        return None
    try:
        async with asyncio.timeout(ASK_S):
            return await Speaker(api).cluster()
    except (AdminTrouble, TimeoutError):
        return None
