"""Spoilt HTTP requests (see testing_fuzz): whole, in pieces, sent ahead, half closed, or cut off."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from kvcm.service.testing_fuzz import DANGEROUS, Findings, Mutator

_PATIENCE_S = 0.3
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")
_HEADERS = (
    b"",
    b"Content-Type: application/json\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
    b"Accept-Encoding: gzip\r\nCookie: a=b\r\n",
    b"x-kvcm-force: true\r\n",
)


def http_corpus(requests: Sequence[tuple[str, Any]]) -> list[bytes]:
    """Valid requests from (RPC name, JSON value), each with a length and chunked, and some GETs."""
    texts = []
    for at, (name, value) in enumerate(requests):
        if name in DANGEROUS:
            continue
        body = json.dumps(value).encode()
        head = b"POST /api/%s HTTP/1.1\r\nHost: x\r\n" % (name[:1].lower() + name[1:]).encode() + _HEADERS[at % len(_HEADERS)]
        texts.append(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        texts.append(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
    gets = (b"/metrics", b"/api/healthy", b"/openapi.json", b"/docs", b"/", b"/%ff?x=y#z")
    return texts + [b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in gets]


async def fuzz_http(ports: Sequence[int], corpus: Sequence[bytes], seconds: float, seed: int, findings: Findings, workers: int = 16) -> None:
    """Throw at `ports` for `seconds`."""
    until = time.monotonic() + seconds
    await asyncio.gather(*(_worker(ports, corpus, until, Mutator(Random(seed * 1000 + at)), findings) for at in range(workers)))


async def _worker(ports: Sequence[int], corpus: Sequence[bytes], until: float, mutator: Mutator, findings: Findings) -> None:
    while time.monotonic() < until:
        findings.throws += 1
        try:
            answer = await _throw(mutator.random.choice(ports), corpus, mutator)
        except OSError:
            findings.answers["connection closed"] += 1
            continue
        statuses = [found.decode() for found in _STATUS.findall(answer)] or ["none"]
        findings.answers.update(statuses)
        # `/api/healthy` and `/readyz` say 503 when they mean it, which is not what is looked for here.
        findings.problems += [f"HTTP {status}: {answer[:200]!r}" for status in statuses if status.startswith("5") and b'"is_health"' not in answer]


async def _throw(port: int, corpus: Sequence[bytes], mutator: Mutator) -> bytes:
    random = mutator.random
    text = mutator.spoil(random.choice(corpus), corpus)
    if random.random() < 0.2:
        text += random.choice(corpus) * random.randrange(1, 30)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in mutator.pieces(text):
            writer.write(piece)
            if random.random() < 0.3:
                await asyncio.sleep(0.001)
        if random.random() < 0.2:
            writer.write_eof()
        elif random.random() < 0.05:
            writer.transport.abort()
        received = b""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while piece := await reader.read(1 << 16):
                    received += piece
        except TimeoutError:
            pass
        return received
    finally:
        writer.close()
