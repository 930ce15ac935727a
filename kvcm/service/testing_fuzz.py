"""Bytes thrown at a running manager's ports, and the watch over it meanwhile: no 5xx, no hang, no traceback, flat memory.

`Mutator` spoils valid bytes; `Watch` asks both ports for something plain every second and looks at the process; `fuzz_http` and `fuzz_grpc` (in modules of
their own) throw. All of it is bounded by time and repeats itself for a given seed as far as sockets do.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_wire import META, GrpcWire, HttpWire

ANSWER_S = 5.0
"""A plain call that takes longer counts as a hang; the machine may be busy."""
_WATCH_S = 1.0
_BAD_LINE = re.compile(r"Traceback|level=(error|fatal)|unexpected_error|reply_not_serialisable|Exception in ASGI")
_INTERESTING = (
    b"0",
    b"-1",
    b"2147483648",
    b"9223372036854775808",
    b"1e999",
    b"\x00",
    b"\xff\xff\xff\xff",
    b"\r\n",
    b"%s",
    b"{}",
    b"[",
    b'"',
    b"\\ud800",
    b"null",
)
# What moves this node or the machine it runs on is asked for with care elsewhere, not by chance.
DANGEROUS = frozenset(
    {"LeaderDemote", "UpdateLeaderElectorConfig", "AddStorage", "UpdateStorage", "CreateInstanceGroup", "UpdateInstanceGroup", "LoadConfigSnapshot"}
)


@dataclass
class Findings:
    """`problems`: sentences, empty when all was well. `answers`: how often each status came. `rss`: resident bytes, one a second."""

    throws: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    slowest_s: float = 0.0

    def report(self) -> str:
        mib = [size >> 20 for size in self.rss] or [0]
        thirds = [_median(mib[len(mib) * at // 3 : len(mib) * (at + 1) // 3]) for at in range(3)]
        answers = ", ".join(f"{name} {count}" for name, count in sorted(self.answers.items()))
        lines = [
            f"throws {self.throws}; answers: {answers}",
            f"memory in MiB: start {mib[0]}, thirds {thirds[0]} {thirds[1]} {thirds[2]}, most {max(mib)}; slowest plain call {self.slowest_s:.3f} s",
        ]
        return "\n".join([*lines, *(f"PROBLEM {problem}" for problem in self.problems[:20])])


class Mutator:
    def __init__(self, random: Random) -> None:
        self.random = random

    def spoil(self, text: bytes, corpus: Sequence[bytes]) -> bytes:
        """`text` with one to eight changes; now and then it is left as it is, so that calls get deep."""
        random = self.random
        if random.random() < 0.1:
            return text
        for _ in range(1 << random.randrange(4)):
            at = random.randrange(len(text) + 1)
            end = min(len(text), at + 1 + random.randrange(16))
            match random.randrange(8):
                case 0:
                    text = text[:at] + bytes([random.randrange(256)]) + text[at + 1 :]
                case 1:
                    text = text[:at] + text[end:]
                case 2:
                    text = text[:at] + random.randbytes(1 + random.randrange(8)) + text[at:]
                case 3:
                    text = text[:at] + random.choice(_INTERESTING) + text[end:]
                case 4:
                    text = text[:end] + text[at:end] * (1 << random.randrange(8)) + text[end:]
                case 5:
                    other = random.choice(corpus)
                    text = text[:at] + other[random.randrange(len(other) + 1) :]
                case 6:
                    text = text[:at]
                case _:
                    text = bytes(byte ^ (1 << random.randrange(8)) if at <= place < end else byte for place, byte in enumerate(text))
        return text[: 1 << 20]

    def pieces(self, text: bytes) -> list[bytes]:
        """The text in one to five parts, for sending them apart."""
        cuts = sorted({0, len(text), *(self.random.randrange(len(text) + 1) for _ in range(self.random.randrange(5)))})
        return [text[a:b] for a, b in itertools.pairwise(cuts)]


class Watch:
    """Beside a fuzzer: `run` until cancelled, then `finish`."""

    def __init__(self, manager: ManagerProcess, findings: Findings) -> None:
        self._manager = manager
        self._findings = findings
        self._http, self._grpc = HttpWire(manager.http_url), GrpcWire(manager.meta_address, META)

    async def run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_WATCH_S)

    async def finish(self) -> None:
        """The last look, and the log."""
        await self._look()
        lines = [line for line in self._manager.log.splitlines() if _BAD_LINE.search(line)]
        self._findings.problems += [f"log: {line[:400]}" for line in lines[:5]]

    async def _look(self) -> None:
        found = self._findings
        process = self._manager.process
        if process is None or process.poll() is not None:
            found.problems.append("the process has ended")
            return
        found.rss.append(int(Path(f"/proc/{self._manager.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        for name, wire in (("HTTP", self._http), ("gRPC", self._grpc)):
            started = time.monotonic()
            try:
                async with asyncio.timeout(ANSWER_S):
                    reply = await asyncio.to_thread(wire.call, "GetClusterInfo", {"trace_id": "watch"})
                if reply["header"]["status"]["code"] != "OK":
                    found.problems.append(f"a plain {name} call is answered {reply['header']}")
            except Exception as error:
                found.problems.append(f"a plain {name} call fails: {error!r}"[:300])
            found.slowest_s = max(found.slowest_s, time.monotonic() - started)


def is_flat(rss: Sequence[int], slack: int = 32 << 20) -> bool:
    """Is the last third of the time no more than a tenth and `slack` bytes above the second?"""
    third = len(rss) // 3
    if not third:
        return True
    middle, last = _median(rss[third : 2 * third]), _median(rss[2 * third :])
    return last <= middle * 1.1 + slack


def _median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0
