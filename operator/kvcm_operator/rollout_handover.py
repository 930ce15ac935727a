"""When may a leader be asked (again) to step down? Pure.

What was asked before stands in the status, and only paces: whoever has lost it asks once more, which is safe. Nobody is ever forced: a leader whom
nobody follows takes its leadership up again and keeps its pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kvcm_operator.rollout_leader import Leadership
from kvcm_operator.subject import mapping, timestamp
from kvcm_operator.world import Json

PATIENCE_S = 30.0
"""How long a leader may drain, and another take to serve, before that counts as a failure."""
MAX_PAUSE_S = 3600.0
"""Between two attempts, in the end: each one that fails costs the service `KEEP_OUT_MS`."""
KEEP_OUT_MS = 15_000
"""A leader that was asked stays out of elections for so long, or it could win again before anybody else; and no longer, or nobody might lead."""


@dataclass(frozen=True, slots=True)
class Handover:
    """`pod`, `epoch`: the leadership that was asked to end. `asked_at`: RFC 3339. `attempts`: since the last time that all was well."""

    pod: str
    epoch: int
    asked_at: str
    attempts: int

    def fact(self) -> Json:
        return {"pod": self.pod, "epoch": self.epoch, "askedAt": self.asked_at, "attempts": self.attempts}

    def waited_s(self, wall_us: int) -> float | None:
        """None when it cannot be told: a time that cannot be read or lies ahead."""
        try:
            waited = wall_us / 1e6 - datetime.fromisoformat(self.asked_at).timestamp()
        except ValueError:
            return None
        return waited if waited >= 0 else None


@dataclass(frozen=True, slots=True)
class Turn:
    """`ask`: now. `failed`: asked before in vain. `again_s`: when to look next."""

    ask: bool
    failed: bool
    again_s: float
    next: Handover | None


def remembered(status: Json) -> Handover | None:
    """What a status tells; None for nothing, or nothing that can be read."""
    fact = mapping(status.get("handover"))
    pod, epoch, asked_at, attempts = fact.get("pod"), fact.get("epoch"), fact.get("askedAt"), fact.get("attempts")
    if not (isinstance(pod, str) and isinstance(epoch, int) and isinstance(asked_at, str) and isinstance(attempts, int)):
        return None
    return Handover(pod, epoch, asked_at, max(attempts, 1))


def turn(leader: Leadership, before: Handover | None, wall_us: int, quick: int) -> Turn:
    """For a leader that has to step down. `quick`: how many different leaders may be asked one after the other without a pause."""
    attempts = before.attempts + 1 if before is not None else 1
    after = Handover(leader.pod, leader.epoch, timestamp(wall_us), attempts)
    waited = before.waited_s(wall_us) if before is not None else None
    if before is None or waited is None:
        return Turn(ask=True, failed=attempts > quick, again_s=0.0, next=after)
    if before.pod != leader.pod and before.attempts < quick:
        # Another one that has to go has won: nothing has failed yet.
        return Turn(ask=True, failed=False, again_s=0.0, next=after)
    pause = min(PATIENCE_S * 2 ** min(before.attempts - 1, 10), MAX_PAUSE_S)
    if waited >= pause:
        return Turn(ask=True, failed=True, again_s=0.0, next=after)
    led_again = leader.pod == before.pod and leader.epoch != before.epoch
    return Turn(ask=False, failed=led_again or in_vain(before, wall_us, quick), again_s=max(pause - waited, 1.0), next=before)


def in_vain(before: Handover, wall_us: int, quick: int) -> bool:
    """Has asking failed before, or does the last time take too long?"""
    waited = before.waited_s(wall_us)
    return before.attempts > quick or waited is None or waited >= PATIENCE_S
