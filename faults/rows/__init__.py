"""One fault a file. `ROWS` is the list: a row is played any number of rounds in one scene."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from faults.rows import crash, demote, kill, stores, suspend, terminate, unnoticed
from faults.scene import Round, Scene


@dataclass(frozen=True, slots=True)
class Row:
    """`rounds`: in a full run. `refused_s`, `served_s`: most seconds that a round may take, None where nothing is required; `served_s` on top of the lease.
    `needs`: of its house, fields of Plan. `play(scene, number)` plays a round."""

    name: str
    title: str
    rounds: int
    play: Callable[[Scene, int], Awaitable[Round]]
    refused_s: float | None = None
    served_s: float | None = None
    needs: Mapping[str, Any] = field(default_factory=dict)


_SECURED = {"weather": True, "secured": True, "stream_entries": 512}
ROWS = {
    row.name: row
    for row in (
        Row("kill", "leader SIGKILL", 50, kill.play, served_s=1.0),
        Row("crash", "leader SIGKILL, started again at once", 10, crash.play, served_s=1.0),
        Row("demote", "LeaderDemote", 50, demote.play, refused_s=1.0),
        Row("terminate", "leader SIGTERM", 50, terminate.play, refused_s=1.0),
        Row("suspend", "leader SIGSTOP beyond its lease, a change held back, SIGCONT", 20, suspend.play),
        Row("stores", "a store away, slow or half-open", 24, stores.play, needs={"weather": True}),
        Row("unnoticed", "compaction, forgotten logins, renewed certificates, a cut stream", 8, unnoticed.play, refused_s=1.0, needs=_SECURED),
    )
}
