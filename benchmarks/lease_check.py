"""What it costs a read to ask whether this node leads and its lease holds, before and after (design D6), as a ratio in one run.

    python -m benchmarks.lease_check [--rounds N] [--json FILE]

The same reads of 256 blocks go in turn to the manager's RPC and to the same handler behind the same dispatcher without the two questions; the lease is real
and is kept alive meanwhile. Both costs are CPU of the process. They differ by less than such a measurement can tell on a busy machine, so the questions are
also asked by themselves many times, and that is set against the read. Target: at most 3 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.harness import Measured, load, machine, measured_manager, random_keys, read_request
from benchmarks.hot_path import REQUESTS, cpu_per_request, picker

_BLOCKS = 256
_LOADED = 16_384
_TARGET = 0.03
_ASKED = 200_000


def measure(manager: Measured, rounds: int) -> dict[str, Any]:
    keys = random_keys(_LOADED, seed=7)
    load(manager, keys)
    pick = picker(keys, len(keys), 1)
    with_checks, without = manager.method("GetCacheLocation"), manager.method("unchecked:GetCacheLocation")
    pairs: list[tuple[float, float]] = []
    alone: list[float] = []
    for turn in range(rounds + 1):
        requests = [read_request(pick(_BLOCKS)) for _ in range(REQUESTS)]
        assert with_checks(requests[0], timeout=30)[-1000:] == without(requests[0], timeout=30)[-1000:]
        order = (without, with_checks) if turn % 2 else (with_checks, without)
        costs = {call: cpu_per_request(manager, call, requests) for call in order}
        asked = float(manager.method("peer:Checks")(b"%d" % _ASKED, timeout=60)) / 1000
        if turn:  # the first one warms up
            pairs.append((costs[without], costs[with_checks]))
            alone.append(asked)
    bare = statistics.median(pair[0] for pair in pairs)
    return {"without_us": bare, "with_us": statistics.median(pair[1] for pair in pairs), "checks_us": min(alone), "pairs": pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with measured_manager() as manager:
        found = measure(manager, options.rounds)
    print(f"{machine()}; reads of {_BLOCKS} blocks, median of {options.rounds} x {REQUESTS}; microseconds of CPU")
    print(f"{'without the checks':<28}{found['without_us']:>9.1f}")
    print(f"{'with them':<28}{found['with_us']:>9.1f}")
    by_turns = statistics.median(with_checks / without for without, with_checks in found["pairs"]) - 1
    by_themselves = found["checks_us"] / found["without_us"]
    print(f"{'the checks by themselves':<28}{found['checks_us']:>9.2f}")
    for title, share in (("added, in turn", by_turns), ("added, by themselves", by_themselves)):
        print(f"{title:<28}{share:>9.2%}  target {_TARGET:.0%}{'' if share <= _TARGET else '  MISSED'}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **found}, indent=1))


if __name__ == "__main__":
    main()
