"""What a manager tells about itself, asked through its admin API."""

from __future__ import annotations

from dataclasses import dataclass

from kvcm_operator.admin import AdminTrouble, Silent, Speaker
from kvcm_operator.gate import admin_port
from kvcm_operator.rollout_leader import Leadership
from kvcm_operator.subject import Subject
from kvcm_operator.world import World


@dataclass(frozen=True, slots=True)
class Serving:
    """`healthy`: it says that it serves, None when it does not answer, and `why` not. `epoch`: of the leader, 0 when unknown.

    The counts are None when a manager does not tell.
    """

    healthy: bool | None
    leader: str = ""
    epoch: int = 0
    storages: int | None = None
    groups: int | None = None
    instances: int | None = None
    why: str = "the manager does not answer on its admin port"


SILENT = Serving(None)


async def ask(subject: Subject, world: World, leader: Leadership | None) -> Serving:
    """`leader`: what the pods say, None when they elect none among them. It is newer than a label, and does not depend on one."""
    if leader is not None and leader.known and not leader.serves:
        return Serving(False)
    try:
        async with world.admin.connect(subject.ref.namespace, subject.ref.name, admin_port(subject)) as api:
            return await _ask(Speaker(api), leader if leader is not None and leader.known else None)
    except Silent as error:
        return Serving(None, why=error.message)
    except AdminTrouble:
        return SILENT


async def _ask(speaker: Speaker, leader: Leadership | None) -> Serving:
    if leader is None:
        if not await speaker.serves():
            return Serving(False)
        cluster = await speaker.cluster()
        leader = Leadership(known=True, pod=cluster.leader_node_id, epoch=cluster.leader_epoch, serves=True)
    groups = list((await speaker.groups()).values())
    told = all(view.usage is not None for view in groups)
    return Serving(
        healthy=True,
        leader=leader.pod,
        epoch=leader.epoch,
        storages=len(await speaker.storages()),
        groups=len(groups),
        instances=sum(view.usage.instances for view in groups if view.usage is not None) if told else None,
    )
