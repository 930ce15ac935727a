"""How long a manager takes to load blocks from Redis, as a ratio in one run (issue D, cold start).

    python -m benchmarks.redis_recovery [--millions 1] [--json FILE]

The peer is the least that any client must do: a hand-packed pipeline of HGETALL of the same keys in the same order, which it is told, parsed by hiredis and
thrown away. Ours is
what a new leader does: raise the fence, find the keys by SCAN, read, decode, index, count. Both run in processes of their own on a quiet Redis, in turn.
Targets: at most 4 times the peer, in time on a quiet machine (CPU time, of client and Redis together, is what others disturb less); at most 400 B of resident
memory per block; no loop stall above 20 ms while loading.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hiredis
import uvloop

from benchmarks.harness import cpu_us_of, machine, random_keys
from kvcm.common.redis.connection import pack
from kvcm.common.redis.testing import RedisServer
from kvcm.meta.index import MetaIndex
from kvcm.meta.location import Block, promote
from kvcm.meta.testing_redis import RedisBlocks
from kvcm.metrics import gc_tuning
from kvcm.protocol.location_encoder import ProtoLocationEncoder

_TARGET = 4.0
_BYTES_TARGET = 400.0
_STALL_TARGET_MS = 20.0
_PAGE = 512
_CHAIN = 64


def fill(port: int, count: int) -> None:
    async def run() -> None:
        blocks = RedisBlocks(ProtoLocationEncoder())
        keys = random_keys(count, seed=3)
        async with blocks.opened(port, 1, "bench", "timeout_ms=20000") as backend:
            async for _ in backend.load():
                pass
            for start in range(0, count, _PAGE):
                page = keys[start : start + _PAGE]
                changes: dict[int, Block] = {}
                for at, key in enumerate(page):  # a chain is written at once, at a time of its own
                    created = 1_700_000_000_000_000 + (start + at) // _CHAIN * 12_347
                    changes[key] = (promote(blocks.location(key, page[at - 1] if at % _CHAIN else None, created_us=created)),)
                await backend.apply(changes, 1)

    asyncio.run(run())


def peer(port: int, count: int) -> dict[str, float]:
    """Seconds of a bare pipelined HGETALL of all keys, two pages under way."""
    connection = socket.create_connection(("127.0.0.1", port))
    reader = hiredis.Reader()
    keys: list[bytes] = []
    cursor = b"0"
    while True:  # not timed: in the order in which Redis lists them, which is not the one in which they lie in its memory
        connection.sendall(pack("SCAN", cursor, "MATCH", "kvcache:instance_bench:cache_*", "COUNT", 2048))
        while (page := reader.gets()) is False:
            reader.feed(connection.recv(1 << 18))
        cursor = page[0]
        keys += page[1]
        if cursor == b"0":
            break
    assert len(keys) >= count
    count = len(keys)
    began, used = time.monotonic(), time.process_time()
    missing = 0
    sent = done = 0
    while done < count:
        while sent < count and sent - done < 2 * _PAGE:
            names = keys[sent : sent + _PAGE]
            connection.sendall(b"".join([b"*2\r\n$7\r\nHGETALL\r\n$%d\r\n%b\r\n" % (len(key), key) for key in names]))
            sent += len(names)
        for _ in range(min(_PAGE, count - done)):
            while (reply := reader.gets()) is False:
                reader.feed(connection.recv(1 << 18))
            missing += not reply
            done += 1
    assert not missing, f"{missing} keys were not there"
    return {"seconds": time.monotonic() - began, "own_us": (time.process_time() - used) * 1e6 / count}


def ours(port: int, count: int) -> dict[str, float]:
    async def run() -> dict[str, float]:
        blocks = RedisBlocks(ProtoLocationEncoder())
        gc_tuning.tune()
        gc_tuning.freeze()
        async with blocks.opened(port, 0, "bench", "timeout_ms=20000") as backend:
            index = MetaIndex(backend, max_key_count=1 << 40)
            stalls = asyncio.get_running_loop().create_task(_worst_stall())
            before = _resident()
            began, used = time.monotonic(), time.process_time()
            await index.raise_fence(2)
            found = await index.recover()
            seconds, own = time.monotonic() - began, (time.process_time() - used) * 1e6 / count
            assert found == count, found
            stalls.cancel()
            wall, cpu = (1000 * max(found, default=0.0) for found in worst)
            return {"seconds": seconds, "own_us": own, "bytes": (_resident() - before) / count, "stall_ms": wall, "stall_cpu_ms": cpu}

    worst: tuple[list[float], list[float]] = [], []

    async def _worst_stall() -> None:
        while True:
            slept, used = time.monotonic(), time.thread_time()
            await asyncio.sleep(0.001)
            worst[0].append(time.monotonic() - slept - 0.001)
            worst[1].append(time.thread_time() - used)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _in_process(what: str, redis: RedisServer, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.redis_recovery", "--part", what, "--port", str(redis.port), "--millions", str(count / 1e6)]
    theirs = cpu_us_of(redis.pid)
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found | {"cpu_us": found["own_us"] + (cpu_us_of(redis.pid) - theirs) / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--millions", type=float, default=1.0, help="blocks, in millions (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts, of both (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--part", choices=("peer", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    count = round(options.millions * 1e6)
    if options.part:
        print(json.dumps({"peer": peer, "ours": ours}[options.part](options.port, count)))
        return
    with RedisServer() as redis:
        fill(redis.port, count)
        runs: list[tuple[dict[str, float], dict[str, float]]] = [
            (_in_process("peer", redis, count), _in_process("ours", redis, count)) for _ in range(options.rounds)
        ]
    bare = min(run["seconds"] for run, _ in runs)
    seconds = min(run["seconds"] for _, run in runs)
    bare_cpu, cpu = min(run["cpu_us"] for run, _ in runs), min(run["cpu_us"] for _, run in runs)
    size, stall, busy = runs[-1][1]["bytes"], min(run["stall_ms"] for _, run in runs), min(run["stall_cpu_ms"] for _, run in runs)
    rows: list[tuple[str, float, Any]] = [
        ("bare pipelined HGETALL, seconds", bare, None),
        ("recovery, seconds", seconds, None),
        ("recovery / bare", seconds / bare, _TARGET),
        ("bare, CPU of it and Redis, us a block", bare_cpu, None),
        ("recovery, CPU of it and Redis, us", cpu, None),
        ("recovery / bare, by CPU", cpu / bare_cpu, _TARGET),
        ("resident bytes per block", size, _BYTES_TARGET),
        ("longest loop stall, ms", stall, _STALL_TARGET_MS),
        ("the same by its own CPU time, ms", busy, _STALL_TARGET_MS),
    ]
    print(f"{machine()}; {count} blocks, best of {options.rounds}")
    for title, value, target in rows:
        print(f"{title:<40}{value:>9.2f}" + ("" if target is None else f"  target {target:.2f}{'' if value <= target else '  MISSED'}"))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "blocks": count, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
