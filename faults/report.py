"""Figures of a run, as a table and as JSON, and whether the requirements are met."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from faults.breaches import Breaches, Kind
from faults.house import Plan
from faults.rows import Row
from faults.scene import Round

_SHOWN = 20


@dataclass(slots=True)
class Played:
    """A row in one house. `counts` are the ledger's at its end minus those at its beginning; `lost` the breaches of that kind."""

    row: Row
    plan: Plan
    blocks: int
    rounds: list[Round] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    breaches: Counter[Kind] = field(default_factory=Counter)

    def check_times(self, found: Breaches) -> None:
        """Requirements on time, each round that misses one."""
        lease_s = self.plan.lease_ms / 1000
        for number, played in enumerate(self.rounds):
            if self.row.refused_s is not None and played.refused_s > self.row.refused_s:
                found.add(
                    Kind.SLOW, f"{self.row.name} round {number}: nobody answered for {played.refused_s:.2f} s, at most {self.row.refused_s} s are allowed"
                )
            if self.row.served_s is not None and played.served_s > lease_s + self.row.served_s:
                found.add(
                    Kind.SLOW, f"{self.row.name} round {number}: served after {played.served_s:.2f} s, at most {lease_s + self.row.served_s} s are allowed"
                )


def table(rows: list[Played]) -> str:
    head = ("row", "stores", "mode", "lease", "rounds", "lost", "tail/lost", "acked", "refused p50/max", "served p50/max", "client max", "epochs", "other")
    lines = [head]
    for played in rows:
        refused, served = ([getattr(item, name) for item in played.rounds] for name in ("refused_s", "served_s"))
        epochs = [item.epoch for item in played.rounds]
        other = sum(count for kind, count in played.breaches.items() if kind not in (Kind.LOST, Kind.SLOW))
        lines.append(
            (
                played.row.name,
                played.plan.stores,
                played.plan.mode,
                f"{played.plan.lease_ms / 1000:g} s",
                str(len(played.rounds)),
                str(played.breaches[Kind.LOST]),
                f"{played.counts['tail']}/{played.counts['tail_lost']}",
                str(played.counts["acknowledged"]),
                _spread(refused),
                _spread(served),
                f"{max((item.waited_s for item in played.rounds), default=0):.2f} s",
                f"{epochs[0]}..{epochs[-1]}" if epochs else "-",
                str(other),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def verdict(breaches: Breaches) -> str:
    if not breaches:
        return "every requirement is met"
    told = [f"  {breach}" for breach in breaches.first[:_SHOWN]]
    counts = ", ".join(f"{count} x {kind.value}" for kind, count in breaches.counts.most_common())
    return "\n".join([f"NOT MET: {counts}", *told])


def as_json(rows: list[Played], machine: str) -> dict[str, Any]:
    return {
        "machine": machine,
        "rows": [
            {
                "row": played.row.name,
                "plan": asdict(played.plan),
                "blocks": played.blocks,
                "counts": dict(played.counts),
                "breaches": {kind.name: count for kind, count in played.breaches.items()},
                "rounds": [asdict(item) for item in played.rounds],
            }
            for played in rows
        ],
    }


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}/{max(values):.2f} s" if values else "-"
