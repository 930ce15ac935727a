"""What a replay counted and how long its steps took.

Every call's time is kept (8 bytes a step), because percentiles of a finished run should be exact. Percentiles are nearest-rank: a value that
really occurred.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

STEPS = ("match", "load", "start", "save", "finish")
_PERCENTILES = (50, 95, 99)


class Latencies:
    """Seconds of one step."""

    def __init__(self) -> None:
        self._seconds = array("d")

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def summary(self) -> dict[str, float]:
        """`count`, and milliseconds: `p50_ms`, `p95_ms`, `p99_ms`, `max_ms`, `mean_ms`; zeros when nothing was timed."""
        ordered = sorted(self._seconds)
        count = len(ordered)
        values = {f"p{percent}_ms": _round(_nearest_rank(ordered, percent)) for percent in _PERCENTILES}
        return {
            "count": count,
            **values,
            "max_ms": _round(ordered[-1] if ordered else 0.0),
            "mean_ms": _round(sum(ordered) / count if count else 0.0),
        }


@dataclass(slots=True)
class Outcome:
    """One request. `seconds` has the steps that took place; blocks are complete blocks."""

    total_blocks: int = 0
    hit_blocks: int = 0
    written_blocks: int = 0
    refused_blocks: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_verified: int = 0
    mismatches: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class ReplayReport:
    """Sums over the requests that were carried out.

    possible_hit_blocks: hits of an empty cache without limits, in the order of the trace (INV-T3); more real hits mean that blocks were stored
        before the replay.
    refused_blocks: complete blocks of requests whose write the manager refused because a quota or limit was full.
    bytes_verified: bytes read that were compared and equal. mismatches: hit blocks that could not be read or had other bytes.
    """

    block_tokens: int
    block_bytes: int
    requests: int = 0
    total_blocks: int = 0
    hit_blocks: int = 0
    possible_hit_blocks: int = 0
    written_blocks: int = 0
    refused_blocks: int = 0
    input_tokens: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_verified: int = 0
    mismatches: int = 0
    wall_seconds: float = 0.0
    latencies: dict[str, Latencies] = field(default_factory=lambda: {step: Latencies() for step in STEPS})

    @property
    def hit_tokens(self) -> int:
        return self.hit_blocks * self.block_tokens

    @property
    def token_hit_rate(self) -> float:
        """Share of all input tokens that were hits, 0 to 1."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    def add(self, outcome: Outcome, input_tokens: int, possible_hits: int) -> None:
        self.requests += 1
        self.input_tokens += input_tokens
        self.possible_hit_blocks += possible_hits
        self.total_blocks += outcome.total_blocks
        self.hit_blocks += outcome.hit_blocks
        self.written_blocks += outcome.written_blocks
        self.refused_blocks += outcome.refused_blocks
        self.bytes_read += outcome.bytes_read
        self.bytes_written += outcome.bytes_written
        self.bytes_verified += outcome.bytes_verified
        self.mismatches += outcome.mismatches
        for step, seconds in outcome.seconds.items():
            self.latencies[step].add(seconds)

    def document(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "requests": self.requests,
            "total_blocks": self.total_blocks,
            "hit_blocks": self.hit_blocks,
            "possible_hit_blocks": self.possible_hit_blocks,
            "written_blocks": self.written_blocks,
            "refused_blocks": self.refused_blocks,
            "block_tokens": self.block_tokens,
            "block_bytes": self.block_bytes,
            "input_tokens": self.input_tokens,
            "hit_tokens": self.hit_tokens,
            "token_hit_rate": round(self.token_hit_rate, 6),
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "bytes_verified": self.bytes_verified,
            "mismatches": self.mismatches,
            "wall_seconds": round(self.wall_seconds, 3),
            "latencies": {step: self.latencies[step].summary() for step in STEPS},
        }


def _nearest_rank(ordered: list[float], percent: int) -> float:
    if not ordered:
        return 0.0
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def _round(seconds: float) -> float:
    return round(seconds * 1000, 4)
