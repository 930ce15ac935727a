"""Spoilt gRPC (see testing_fuzz): messages inside valid calls, and HTTP/2 connections down to their frames."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from random import Random

import grpc

from kvcm.service.testing_fuzz import ANSWER_S, DANGEROUS, Findings, Mutator

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_FRAME_TYPES = range(11)
_END_STREAM, _END_HEADERS = 0x1, 0x4
_PATIENCE_S = 0.3
# What a server may say to bytes that are no call of its services.
_FINE = frozenset({"OK", "INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"})

Call = tuple[str, bytes]
"""(`/service/method`, serialised request)."""


def grpc_corpus(calls: Sequence[Call]) -> list[Call]:
    """Those that may be thrown by chance."""
    return [call for call in calls if call[0].rpartition("/")[2] not in DANGEROUS]


async def fuzz_grpc(ports: Sequence[int], corpus: Sequence[Call], seconds: float, seed: int, findings: Findings, workers: int = 8) -> None:
    """Throw at `ports` for `seconds`: half of the workers messages, half of them frames."""
    until = time.monotonic() + seconds
    mutators = [Mutator(Random(seed * 1000 + at)) for at in range(workers)]
    throwers = [
        _messages(ports, corpus, until, mutator, findings) if at % 2 else _frames(ports, corpus, until, mutator, findings)
        for at, mutator in enumerate(mutators)
    ]
    await asyncio.gather(*throwers)


async def _messages(ports: Sequence[int], corpus: Sequence[Call], until: float, mutator: Mutator, findings: Findings) -> None:
    texts = [request for _, request in corpus]
    for port in ports:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            share = until - (until - time.monotonic()) * (len(ports) - 1 - ports.index(port)) / len(ports)
            while time.monotonic() < share:
                path, request = mutator.random.choice(corpus)
                findings.throws += 1
                try:
                    await channel.unary_unary(path, None, None)(mutator.spoil(request, texts), timeout=ANSWER_S)
                    status = "OK"
                except grpc.aio.AioRpcError as error:
                    status = error.code().name
                    if status not in _FINE:
                        findings.problems.append(f"gRPC {path}: {status} {error.details()}"[:300])
                findings.answers[status] += 1


async def _frames(ports: Sequence[int], corpus: Sequence[Call], until: float, mutator: Mutator, findings: Findings) -> None:
    streams = [conversation(path, request) for path, request in corpus]
    random = mutator.random
    while time.monotonic() < until:
        findings.throws += 1
        text = random.choice(streams)
        if random.random() < 0.5:
            text += b"".join(_stray(random) for _ in range(random.randrange(1, 20)))
        # The preface is spared more often than not, else nothing gets past it.
        text = _PREFACE + mutator.spoil(text[len(_PREFACE) :], streams) if random.random() < 0.8 else mutator.spoil(text, streams)
        try:
            findings.answers[await _throw(random.choice(ports), text, mutator)] += 1
        except OSError:
            findings.answers["connection closed"] += 1


async def _throw(port: int, text: bytes, mutator: Mutator) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in mutator.pieces(text):
            writer.write(piece)
        received = 0
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while piece := await reader.read(1 << 16):
                    received += len(piece)
            return "frames, then closed"
        except TimeoutError:
            return "frames" if received else "silence"
    finally:
        writer.close()


def conversation(path: str, request: bytes) -> bytes:
    """All that a client sends for one unary call."""
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("grpc-timeout", "1S"),
    )
    message = struct.pack(">BI", 0, len(request)) + request
    block = b"".join(_literal(name.encode(), value.encode()) for name, value in headers)
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_SETTINGS, 1, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, 1, block)
        + _frame(_DATA, _END_STREAM, 1, message)
    )


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field that is not indexed (RFC 7541, 6.2.2); both lengths below 127."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _stray(random: Random) -> bytes:
    return _frame(random.choice(_FRAME_TYPES), random.randrange(256), random.randrange(9), random.randbytes(random.randrange(64)))
