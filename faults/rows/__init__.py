"""One fault a file. `ROWS` is the list: a row is played any number of rounds in one scene."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from faults.rows import crash, demote, kill, suspend, terminate
from faults.scene import Round, Scene


@dataclass(frozen=True, slots=True)
class Row:
    """`rounds`: in a full run. `refused_s`, `served_s`: most seconds that a round may take, None where nothing is required; `served_s` on top of the lease.
    `play(scene, number)` plays a round."""

    name: str
    title: str
    rounds: int
    play: Callable[[Scene, int], Awaitable[Round]]
    refused_s: float | None = None
    served_s: float | None = None


ROWS = {
    row.name: row
    for row in (
        Row("kill", "leader SIGKILL", 50, kill.play, served_s=1.0),
        Row("crash", "leader SIGKILL, started again at once", 10, crash.play, served_s=1.0),
        Row("demote", "LeaderDemote", 50, demote.play, refused_s=1.0),
        Row("terminate", "leader SIGTERM", 50, terminate.play, refused_s=1.0),
        Row("suspend", "leader SIGSTOP beyond its lease, a change held back, SIGCONT", 20, suspend.play),
    )
}
