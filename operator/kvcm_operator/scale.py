"""How many pods the StatefulSet may be told to have. Pure.

It takes away those with the highest numbers, all at once. Danger: the leader may be one of them; then it stays, with those below it, until another one leads.
Growing, and stopping altogether, never wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcm_operator.rollout_fleet import Fleet, Node
from kvcm_operator.rollout_leader import Leadership


@dataclass(frozen=True, slots=True)
class Size:
    """`replicas`: what to write now. `held`: it is more than what the spec asks for, because of who leads."""

    replicas: int
    held: bool = False


def size(wanted: int, fleet: Fleet, leader: Leadership | None) -> Size:
    """`leader` None: the pods elect none among them."""
    if not fleet.exists or leader is None or wanted == 0 or wanted >= fleet.size:
        return Size(wanted)
    leaving = surplus(wanted, fleet)
    if not leaving:
        return Size(wanted)
    if not leader.known:
        return Size(fleet.size, held=True)
    if not leader.pod:
        # Between two leaders for a moment; when nobody has led for a while no pod is ready any more, and there is nothing to hand over.
        return Size(fleet.size, held=True) if fleet.ready else Size(wanted)
    leads = next((node for node in leaving if node.name == leader.pod), None)
    if leads is None:
        return Size(wanted)
    # Those above the leader go now: one of them could win when the leader steps down, and would have to step down as well.
    return Size(min(leads.ordinal + 1, fleet.size), held=True)


def surplus(wanted: int, fleet: Fleet) -> tuple[Node, ...]:
    """Pods that the spec does not ask for, and that are not being stopped yet."""
    return tuple(node for node in fleet.living if node.ordinal >= wanted)
