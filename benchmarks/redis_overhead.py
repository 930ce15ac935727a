"""What durable metadata costs a write, as ratios in one run (design D7, issue D).

    python -m benchmarks.redis_overhead [--rounds N] [--json FILE]

A pair is StartWrite and FinishWrite of 32 new blocks over gRPC. Costs are CPU time, of the manager and of Redis together, so that what others do on the machine
and the way over the network do not count. Three managers take the same pairs in turn: metadata in memory, written through, written behind.

    bare            what Redis must be told of the same blocks, by a client that does nothing else, client and Redis together: the commands that the manager
                    sends (two fenced scripts of 32 blocks, design D6), packed by hand from ready values, sent over a blocking socket, parsed by hiredis
    unfenced        the same content as two pipelines of 32 HSET, which an old leader could send too; packed by hand, and by redis-py
    write-through   what a pair costs more than in memory, by each of these; target <= 1.30 of bare
    write-behind    what a pair costs the manager more than in memory, by the pair in memory; target <= 0.25. Redis' own work comes later and is shown apart.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hiredis

from benchmarks.harness import INSTANCE, Measured, cpu_us_of, machine, measured_manager, random_keys
from benchmarks.hot_path import REQUESTS, cpu_per_pair
from kvcm.common.redis.connection import pack
from kvcm.common.redis.testing import RedisServer
from kvcm.meta.redis_changes import DEFAULT_MAX_ENTRIES
from kvcm.meta.redis_scripts import PUT_CHAIN

_BLOCKS = 32
_THROUGH_TARGET = 1.30
_BEHIND_TARGET = 0.25


@dataclass(frozen=True)
class Round:
    """Microseconds of CPU per pair."""

    memory: float
    through: float
    through_redis: float
    behind: float
    behind_redis: float
    bare: float
    bare_redis: float
    unfenced: float
    unfenced_redis: float
    library: float
    library_redis: float

    @property
    def added(self) -> float:
        return self.through + self.through_redis - self.memory

    @property
    def through_ratio(self) -> float:
        return self.added / (self.bare + self.bare_redis)

    @property
    def unfenced_ratio(self) -> float:
        return self.added / (self.unfenced + self.unfenced_redis)

    @property
    def library_ratio(self) -> float:
        return self.added / (self.library + self.library_redis)

    @property
    def behind_ratio(self) -> float:
        return (self.behind - self.memory) / self.memory


class BareClient:
    """A blocking socket and hiredis."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def _ask(self, data: bytes, replies: int = 1) -> Any:
        self._socket.sendall(data)
        for _ in range(replies):
            while (reply := self._reader.gets()) is False:
                self._reader.feed(self._socket.recv(1 << 16))
            assert isinstance(reply, int | bytes), reply
        return reply


class ScriptClient(BareClient):
    """What the manager sends for these blocks."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._key, self._token = "kvcache:instance_bare:__kvcm_fence__", f"{1:020}.0123456789abcdef"
        self._ask(pack("SET", self._key, self._token))
        self._ask(PUT_CHAIN.load)

    def pair(self, keys: Sequence[int]) -> None:
        changed = array("q", keys).tobytes()
        for status in (2, 3):
            parts: list[str] = []
            for key, text in zip(keys, _texts(keys, status), strict=True):
                parts += (str(key), text)
            told = ("kvcache:instance_bare:__kvcm_stream__", DEFAULT_MAX_ENTRIES, 1, 1, changed)
            kind = 1 if status == 2 else 2
            head = ("EVALSHA", PUT_CHAIN.sha, 1, self._key, self._token, "1700000000000000", "BP#lru_time", "kvcache:instance_bare:cache_", kind)
            assert self._ask(pack(*head, *told, *parts)) == 1


class UnfencedClient(BareClient):
    def pair(self, keys: Sequence[int]) -> None:
        for status in (2, 3):
            self._ask(b"".join([pack("HSET", *fields) for fields in _fields(keys, status)]), len(keys))


class LibraryClient:
    """The same through redis-py."""

    def __init__(self, port: int) -> None:
        import redis

        self._redis: Any = redis.Redis(port=port)

    def pair(self, keys: Sequence[int]) -> None:
        for status in (2, 3):
            pipeline = self._redis.pipeline(transaction=False)
            for fields in _fields(keys, status):
                pipeline.execute_command("HSET", *fields)
            pipeline.execute()


def _fields(keys: Sequence[int], status: int) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    previous = 0
    for key, text in zip(keys, _texts(keys, status), strict=True):
        name = f"L#{key & 0xFFFFFFFF:08x}"
        found.append((f"kvcache:instance_bare:cache_{key}", "BP#lru_time", "1700000000000000", "BP#prev_key", str(previous), name, text))
        previous = key
    return found


def _texts(keys: Sequence[int], status: int) -> list[str]:
    """What is stored of each location."""
    found: list[str] = []
    for key in keys:
        uri = f"file://nfs_01/tmp/kvcm-bench-12345678/nfs/{INSTANCE}/tp0/{key & (1 << 64) - 1:x}_0123456789abcdef?size=1024"
        head = f'{{"id":"{key & 0xFFFFFFFF:08x}","status":{status},"type":4,"spec_size":1,"create_time":1700000000000000,'
        found.append(f'{head}"location_specs":[{{"name":"tp0","uri":"{uri}"}}]}}')
    return found


def bare_pairs(client: Any, redis: RedisServer, seed: int) -> tuple[float, float]:
    keys = random_keys(_BLOCKS * REQUESTS, seed)
    own, theirs = cpu_us_of(os.getpid()), cpu_us_of(redis.pid)
    for at in range(0, len(keys), _BLOCKS):
        client.pair(keys[at : at + _BLOCKS])
    return (cpu_us_of(os.getpid()) - own) / REQUESTS, (cpu_us_of(redis.pid) - theirs) / REQUESTS


def pairs(manager: Measured, redis: RedisServer, turn: int) -> tuple[float, float]:
    before = cpu_us_of(redis.pid)
    cost = cpu_per_pair(manager, turn)
    return cost, (cpu_us_of(redis.pid) - before) / REQUESTS


def measure(rounds: int) -> list[Round]:
    found = []
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        memory = stack.enter_context(measured_manager())
        through = stack.enter_context(measured_manager(backend=("redis", redis.uri)))
        behind = stack.enter_context(measured_manager(backend=("async_redis", f"{redis.uri}?db=1")))
        bare, unfenced, library = ScriptClient(redis.port), UnfencedClient(redis.port), LibraryClient(redis.port)
        for turn in range(rounds + 1):
            in_memory, _ = pairs(memory, redis, turn)
            written_through, written_behind = pairs(through, redis, turn), pairs(behind, redis, turn)
            alone, plain = bare_pairs(bare, redis, 5_000 + turn), bare_pairs(unfenced, redis, 7_000 + turn)
            by_library = bare_pairs(library, redis, 9_000 + turn)
            if turn:  # the first one warms up
                found.append(Round(in_memory, *written_through, *written_behind, *alone, *plain, *by_library))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rounds = measure(options.rounds)

    def middle(name: str) -> float:
        return float(statistics.median(getattr(item, name) for item in rounds))

    print(f"{machine()}; pairs of {_BLOCKS} blocks, median of {options.rounds} x {REQUESTS}; microseconds of CPU per pair")
    print(f"{'':<28}{'process us':>12}{'Redis us':>10}")
    for title, name in (("pair, in memory", "memory"), ("pair, written through", "through"), ("pair, written behind", "behind")):
        print(f"{title:<28}{middle(name):>12.0f}{middle(f'{name}_redis') if name != 'memory' else 0:>10.0f}")
    for title, name in (("bare: scripts, by hand", "bare"), ("unfenced HSETs, by hand", "unfenced"), ("unfenced HSETs, redis-py", "library")):
        print(f"{title:<28}{middle(name):>12.0f}{middle(f'{name}_redis'):>10.0f}")
    for title, name, target in (
        ("write-through: added / bare", "through_ratio", _THROUGH_TARGET),
        ("write-through: added / unfenced", "unfenced_ratio", None),
        ("write-through: added / redis-py", "library_ratio", None),
        ("write-behind: added / in memory", "behind_ratio", _BEHIND_TARGET),
    ):
        ratio = middle(name)
        mark = "" if target is None else f"  target {target:.2f}{'' if ratio <= target else '  MISSED'}"
        print(f"{title:<34}{ratio:>6.2f}{mark}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rounds": [asdict(item) for item in rounds]}, indent=1))


if __name__ == "__main__":
    main()
