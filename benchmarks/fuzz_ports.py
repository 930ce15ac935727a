"""Throw spoilt bytes at a manager's HTTP and gRPC ports: `python -m benchmarks.fuzz_ports --seconds 600`.

Each side gets the time for itself, first HTTP, then gRPC. Ends with code 1 when something was found: a 5xx, a gRPC status that says the server failed, a plain
call that waited, a traceback or error in the log, memory that grows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
from pathlib import Path

from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_fuzz import Findings, Watch, is_flat
from kvcm.service.testing_fuzz_calls import calls_of
from kvcm.service.testing_fuzz_grpc import fuzz_grpc, grpc_corpus
from kvcm.service.testing_fuzz_http import fuzz_http, http_corpus
from kvcm.service.testing_story import startup_file

SIDES = ("http", "grpc")


def fuzz(side: str, seconds: float, seed: int) -> Findings:
    """One side of a fresh manager."""
    with tempfile.TemporaryDirectory(prefix="kvcm-fuzz-") as folder:
        settings = {"kvcm.startup_config": startup_file(folder), "kvcm.service.enable_debug_service": "true"}
        with ManagerProcess(settings) as manager:
            return asyncio.run(_fuzz(manager, side, seconds, seed))


async def _fuzz(manager: ManagerProcess, side: str, seconds: float, seed: int) -> Findings:
    findings = Findings()
    watch = Watch(manager, findings)
    calls = calls_of()
    watching = asyncio.create_task(watch.run())
    ports = manager.endpoint
    if side == "http":
        every = (ports.meta_http_port, ports.admin_http_port, ports.meta_http_port + 3000)
        await fuzz_http(every, http_corpus([(call.rpc, json.loads(call.json)) for call in calls]), seconds, seed, findings)
    else:
        await fuzz_grpc((ports.meta_rpc_port,), grpc_corpus([(call.path, call.wire) for call in calls]), seconds, seed, findings)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    await watch.finish()
    if not is_flat(findings.rss):
        findings.problems.append("memory grows")
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600, help="for each side")
    parser.add_argument("--side", choices=SIDES, action="append")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument("--report", type=Path, help="write the report there too")
    given = parser.parse_args()
    lines, bad = [], False
    for side in given.side or SIDES:
        found = fuzz(side, given.seconds, given.seed)
        bad |= bool(found.problems)
        lines.append(f"{side}: {given.seconds:g} s, seed {given.seed}\n{found.report()}")
        print(lines[-1], flush=True)
    if given.report is not None:
        given.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
