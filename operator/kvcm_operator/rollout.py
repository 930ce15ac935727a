"""The next step towards pods that are as the spec says: at most one that takes something away, and what to say meanwhile. Pure.

The StatefulSet replaces nothing by itself (OnDelete). The order: followers one at a time, each ready again before the next; then the leader is asked to
step down; its pod goes last, when another one of the newest template leads and serves. Nothing is remembered but how often a leader was asked
(rollout_handover): every pass looks at what is there.

Dangers:
- a pod that is deleted before the set's controller has seen the new template comes back with the old one: nothing goes before it has;
- a new template that does not work must cost one follower, not the service: the next pod goes only when all others are ready. Outdated pods that are
  not ready go first, so that a corrected template reaches the broken pod before any healthy one;
- while it cannot be told who leads, any pod may be the leader: none that is ready is touched.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kvcm.resources.conditions import Reason
from kvcm_operator.rollout_fleet import Fleet, Node, lingering
from kvcm_operator.rollout_handover import Handover, in_vain, turn
from kvcm_operator.rollout_leader import Leadership
from kvcm_operator.scale import surplus

ROLLING = "the pods are being replaced by ones with the new settings and volumes"
STARTING = "the pods are not ready yet"
STOPPING = "the pods that the spec no longer asks for are being stopped"
FILLING = "a follower still reads block metadata, so it could not take over at once; the next pod goes after that"
ASKED = "the leader was asked to step down before its pod goes; another one is waited for"
IN_VAIN = "the leader was asked to step down before its pod goes, and no other one took over; its pod is left alone and it is asked again later"
LOOK_S = 1.0
"""While others are expected to act within moments."""
STUCK_S = 60.0
"""A leader that does not serve for so long is not waited for any more when it has to go."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`replace`: the pod to delete; `demote`: the leader to ask. At most one of them. `reason`: why the pods are not as they should be; None when they are.

    `again_s`: when to look next, None when the usual pace will do. `handover`: what to remember.
    """

    reason: Reason | None = None
    message: str = ""
    replace: Node | None = None
    demote: Node | None = None
    again_s: float | None = None
    handover: Handover | None = None


def plan(wanted: int, fleet: Fleet, leader: Leadership | None, before: Handover | None, wall_us: int, cold: Collection[str] = frozenset()) -> Plan:
    """`leader` None: the pods elect none among them, so each may go like a follower. `before`: what the status remembers.

    cold: pods that could not take over at once; they are waited for.
    """
    staying = [node for node in fleet.living if node.ordinal < wanted]
    outdated = [node for node in staying if node.outdated]
    held = wanted < fleet.size
    if not fleet.seen:
        return _keeping(_unseen(wanted, fleet, rolling=bool(outdated)), before)
    if not outdated and not held:
        return _as_asked(wanted, fleet, staying)
    problem = _down(wanted, fleet, staying, rolling=bool(outdated))
    if problem is not None:
        return _keeping(problem, before)
    broken = [node for node in outdated if not node.ready and (leader is None or node.name != leader.pod)]
    if broken:
        return _keeping(_replace(broken[-1]), before)
    if any(node.name in cold and not (node.outdated or leader is None or node.name == leader.pod) for node in staying):
        return _keeping(Plan(Reason.ROLLING_OUT if outdated else Reason.SCALING_DOWN, FILLING, again_s=LOOK_S), before)
    if outdated and (leader is None or len(fleet.living) == 1):
        # A single pod has nobody to hand over to.
        return _replace(outdated[-1])
    return _with_leader(wanted, fleet, leader or Leadership(known=False), outdated, before, wall_us)


def _with_leader(wanted: int, fleet: Fleet, leader: Leadership, outdated: list[Node], before: Handover | None, wall_us: int) -> Plan:
    """All pods are there, and ready but for the leader's."""
    moving = Reason.ROLLING_OUT if outdated else Reason.SCALING_DOWN
    leaving = surplus(wanted, fleet)
    if not leader.known:
        return _keeping(Plan(moving, f"{_waits(moving)}: {leader.why}", again_s=LOOK_S), before)
    node = fleet.living_node(leader.pod)
    must_go = node is not None and (node.outdated or node in leaving)
    # A leader that has to go anyway, and never comes to serving, may be what the new template repairs.
    stuck = must_go and not leader.serves and leader.led_for_s > STUCK_S
    if not leader.pod or not (leader.serves or stuck):
        return _between_leaders(moving, leader, before, wall_us, quick=len(leaving) + 1 if leaving else 1)
    followers = [one for one in outdated if one.name != leader.pod]
    if followers:
        return _replace(followers[-1])
    heirs = [one for one in fleet.living if one.ordinal < wanted and one.ready and not one.outdated and one.name != leader.pod]
    if node is None or not must_go or not heirs:
        return _keeping(Plan(moving, ROLLING if outdated else STOPPING, again_s=LOOK_S), before)
    now = turn(leader, before, wall_us, quick=len(leaving) + 1 if leaving else 1)
    reason, message = (Reason.HANDOVER_FAILED, IN_VAIN) if now.failed else (Reason.HANDING_OVER, ASKED)
    return Plan(reason, message, demote=node if now.ask else None, again_s=LOOK_S if now.ask else min(now.again_s, LOOK_S * 5), handover=now.next)


def _between_leaders(moving: Reason, leader: Leadership, before: Handover | None, wall_us: int, quick: int) -> Plan:
    if before is None:
        why = "the pod that leads does not serve yet, or does not answer" if leader.pod else "no pod leads"
        return Plan(moving, f"{_waits(moving)}: {why}", again_s=LOOK_S)
    if in_vain(before, wall_us, quick):
        return Plan(Reason.HANDOVER_FAILED, IN_VAIN, again_s=LOOK_S, handover=before)
    return Plan(Reason.HANDING_OVER, ASKED, again_s=LOOK_S, handover=before)


def _unseen(wanted: int, fleet: Fleet, *, rolling: bool) -> Plan:
    if rolling:
        return Plan(Reason.ROLLING_OUT, ROLLING)
    return Plan(Reason.SCALING_DOWN, STOPPING) if surplus(wanted, fleet) else Plan(Reason.PODS_STARTING, STARTING)


def _as_asked(wanted: int, fleet: Fleet, staying: list[Node]) -> Plan:
    """Nothing has to be taken away any more."""
    if any(node.ordinal >= wanted for node in fleet.nodes):
        return Plan(Reason.SCALING_DOWN, f"{STOPPING}{lingering(fleet.nodes)}")
    return _down(wanted, fleet, staying, rolling=False) or Plan()


def _down(wanted: int, fleet: Fleet, staying: list[Node], *, rolling: bool) -> Plan | None:
    """What has to come back before another pod may go; None when all are ready that are not outdated."""
    stopping = [node for node in fleet.nodes if node.stopping and node.ordinal < wanted]
    young = [node for node in staying if not node.outdated and not node.ready]
    troubled = [node for node in (*young, *stopping) if node.trouble]
    if troubled:
        why = f"pod {troubled[0].name} {'does not stop' if troubled[0].stopping else 'does not become ready'}: {troubled[0].trouble}"
        return Plan(Reason.ROLL_OUT_HALTED, f"{why}; no other pod is replaced before it does") if rolling else Plan(Reason.PODS_STARTING, why)
    if stopping or young or len(staying) < min(wanted, fleet.size):
        return Plan(Reason.ROLLING_OUT, ROLLING) if rolling else Plan(Reason.PODS_STARTING, STARTING)
    return None


def _replace(node: Node) -> Plan:
    return Plan(Reason.ROLLING_OUT, ROLLING, replace=node, again_s=LOOK_S)


def _keeping(found: Plan, before: Handover | None) -> Plan:
    return Plan(found.reason, found.message, found.replace, found.demote, found.again_s, before)


def _waits(moving: Reason) -> str:
    return "the next pod is not replaced yet" if moving is Reason.ROLLING_OUT else "the pods that the spec no longer asks for are not stopped yet"
