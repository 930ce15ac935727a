"""Whether what a replay counted and what the manager says afterwards fit together. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kvcm.client.replay.audit import NOT_FOUND, Audit
from kvcm.client.replay.report import ReplayReport


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes that the manager reported for the instance before and after the replay."""

    before: int
    after: int


def problems(report: ReplayReport, audit: Audit, usage: Usage | None, *, fresh: bool, sequential: bool) -> list[str]:
    """One sentence for each contradiction; empty when all is well. Mismatches of bytes are not repeated here.

    fresh: the manager was empty and without limits, so hits are known exactly (when requests ran one after another) and nothing may be missing.
    """
    found = []
    if audit.unsettled:
        found.append(f"{audit.unsettled} blocks are neither served nor gone although every write was finished")
    if fresh and audit.states.get(NOT_FOUND):
        found.append(f"{audit.states[NOT_FOUND]} blocks that were written are gone")
    if fresh and report.refused_blocks:
        found.append(f"the write of {report.refused_blocks} blocks was refused although there is no limit")
    if fresh and sequential and report.hit_blocks != report.possible_hit_blocks:
        found.append(f"{report.hit_blocks} blocks were hits, but an unlimited cache has {report.possible_hit_blocks} in this trace")
    if usage is not None and usage.after - usage.before != report.bytes_written:
        found.append(f"{report.bytes_written} bytes were written, but the reported usage grew by {usage.after - usage.before}")
    if usage is not None and not usage.before and usage.after != audit.stored_bytes:
        found.append(f"the reported usage is {usage.after} bytes, but the served blocks have {audit.stored_bytes}")
    return found
