"""`python -m faults`: rows of faults on real processes, and a table.

    python -m faults [--row NAME,NAME...] [--rounds N] [--blocks N] [--stores etcd,redis] [--mode through|behind] [--lease MS]
                     [--seed N] [--json FILE] [--logs FOLDER]

Needs etcd and redis-server (Debian: etcd-server, redis-server). Ends with 1 when a requirement is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Coroutine
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from faults.breaches import Breaches
from faults.house import BEHIND, STORES, Plan
from faults.report import Played, as_json, table, verdict
from faults.rows import ROWS
from faults.run import play


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--row", default=",".join(ROWS), help="rows, separated by commas (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=0, help="of each row; 0: as many as a full run has (default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=1_000_000, help="loaded before the rounds (default: %(default)s)")
    parser.add_argument("--stores", default="etcd", help="where leases and registry are: etcd, redis, or both one after the other (default: %(default)s)")
    parser.add_argument("--mode", default="through", choices=sorted(BEHIND), help="how metadata is written to Redis (default: %(default)s)")
    parser.add_argument("--lease", type=int, default=1000, help="milliseconds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--logs", type=Path, help="copy the nodes' logs to this folder after each row")
    options = parser.parse_args(arguments)
    rows, stores = options.row.split(","), options.stores.split(",")
    for names, known in ((rows, list(ROWS)), (stores, list(STORES))):
        wrong = [name for name in names if name not in known]
        if wrong:
            parser.error(f"there is no {wrong[0]!r}; there are {', '.join(known)}")
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)

    breaches = Breaches()
    found: list[Played] = []
    print(machine())
    for store in stores:
        for needs, group in groupby((ROWS[name] for name in rows), key=lambda row: row.needs):
            plan = Plan(stores=store, mode=options.mode, lease_ms=options.lease, **needs)
            wanted = [(row, options.rounds or max(1, row.rounds // len(stores))) for row in group]
            found += asyncio.run(_cleanly(play(plan, options.blocks, wanted, options.seed, say, breaches, options.logs)))
    for played in found:
        played.check_times(breaches)
    print(f"\n{options.blocks} blocks, seed {options.seed}\n{table(found)}\n\n{verdict(breaches)}")
    if options.json:
        options.json.write_text(json.dumps(as_json(found, machine()), indent=1))
    return 1 if breaches else 0


async def _cleanly(work: Coroutine[Any, Any, list[Played]]) -> list[Played]:
    """Ended by SIGTERM, as a time-out does it: takes the processes that were started with it, like Ctrl-C. Raises CancelledError then."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    sys.exit(main())
