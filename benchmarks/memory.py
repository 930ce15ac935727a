"""Memory per block, loop stalls and collector pauses with a full index (design D3, issue A).

    python -m benchmarks.memory [--millions 1 5] [--session 256] [--json FILE]

Targets: at most 400 B of resident memory per block at 1 M blocks and 420 B at 5 M, one spec each; with 1 M blocks loaded no loop stall and no collector pause
above 20 ms. Memory is resident memory after loading minus before, divided by the blocks. Stalls and pauses are the manager's own readings (`/metrics`) from
the first write on: the load itself, then a mixed load of reads, writes and removals. They are histograms, so the figure is the upper bound of the highest
bucket that was hit. `--session`: blocks per write session.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from benchmarks.harness import INSTANCE, Measured, finish_request, load, machine, measured_manager, random_keys, read_request, start_request
from kvcm.protocol import meta_service_pb2 as meta

_TARGETS = {1: 400.0, 5: 420.0}
_STALL_TARGET_MS = 20.0
MIXED_SECONDS = 20.0


@dataclass(frozen=True)
class Result:
    millions: float
    bytes_per_block: float
    load_seconds: float
    stall_ms: float
    gc_ms: float


def measure(millions: float, session: int) -> Result:
    count = int(millions * 1_000_000)
    keys = random_keys(count, seed=11)
    with measured_manager() as manager:
        warm = random_keys(50_000, seed=12)
        load(manager, warm, session)
        lag, pauses = _buckets(manager, "loop_lag_distribution_seconds"), _buckets(manager, "gc_pause_seconds")
        before = manager.rss()
        started = time.monotonic()
        load(manager, keys, session)
        seconds = time.monotonic() - started
        per_block = (manager.rss() - before) / count
        mixed_load(manager, keys)
        stall = _highest(lag, _buckets(manager, "loop_lag_distribution_seconds"))
        pause = _highest(pauses, _buckets(manager, "gc_pause_seconds"))
    return Result(millions, per_block, seconds, 1000 * stall, 1000 * pause)


def mixed_load(manager: Measured, keys: Sequence[int]) -> None:
    """Reads of all sizes, writes and removals, one after the other, for MIXED_SECONDS."""
    generator = Random(5)
    read, start = manager.method("GetCacheLocation"), manager.method("StartWriteCache")
    finish, remove = manager.method("FinishWriteCache"), manager.method("RemoveCache")
    end = time.monotonic() + MIXED_SECONDS
    turn = 0
    while time.monotonic() < end:
        turn += 1
        for blocks in (1, 32, 256, 1024):
            at = generator.randrange(len(keys) - blocks)
            read(read_request(keys[at : at + blocks]), timeout=30)
        fresh = random_keys(64, seed=1_000_000 + turn)
        reply = meta.StartWriteCacheResponse.FromString(start(start_request(fresh), timeout=30))
        finish(finish_request(reply.write_session_id, 64), timeout=30)
        at = generator.randrange(len(keys) - 64)
        remove(meta.RemoveCacheRequest(trace_id="bench", instance_id=INSTANCE, block_keys=keys[at : at + 64]).SerializeToString(), timeout=30)


def _buckets(manager: Measured, name: str) -> dict[tuple[str, float], float]:
    """Cumulative counts of a histogram by (its other labels, upper bound in seconds)."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{manager.admin_http_port}/metrics", timeout=30).read().decode()
    found: dict[tuple[str, float], float] = {}
    for labels, value in re.findall(rf"^kvcm_{name}_bucket\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE):
        bound = re.search(r'le="([^"]+)"', labels)
        assert bound is not None
        found[labels.replace(bound.group(0), ""), float(bound.group(1))] = float(value)
    if not found:
        raise RuntimeError(f"the manager does not export {name}")
    return found


def _highest(before: dict[tuple[str, float], float], after: dict[tuple[str, float], float]) -> float:
    """Upper bound, in seconds, of the highest bucket that has grown; 0 if none has."""
    grown = {key: count - before.get(key, 0.0) for key, count in after.items()}
    highest = 0.0
    for labels in {labels for labels, _ in grown}:
        total = max(count for (other, _), count in grown.items() if other == labels)
        if total:
            highest = max(highest, min(bound for (other, bound), count in grown.items() if other == labels and count >= total))
    return highest


def _bound(milliseconds: float) -> str:
    return f"<= {milliseconds:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 5], help="blocks to load, in millions (default: 1 5)")
    parser.add_argument("--session", type=int, default=256, help="blocks per write session (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    results = [measure(millions, options.session) for millions in options.millions]
    print(f"{machine()}; sessions of {options.session} blocks, one spec each")
    print(f"{'blocks':>10}{'B/block':>10}{'target':>8}{'load s':>9}{'worst stall ms':>16}{'worst gc ms':>13}{'target':>8}")
    for result in results:
        target = _TARGETS.get(int(result.millions))
        stall = f"{_STALL_TARGET_MS:>8.0f}" if result.millions == 1 else f"{'-':>8}"
        print(
            f"{result.millions:>8.1f} M{result.bytes_per_block:>10.0f}{target or 0:>8.0f}{result.load_seconds:>9.0f}"
            f"{_bound(result.stall_ms):>16}{_bound(result.gc_ms):>13}{stall}"
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "session": options.session, "results": [asdict(r) for r in results]}, indent=1))


if __name__ == "__main__":
    main()
