"""A few seconds of spoilt bytes at both ports, with the watch that the long runs have (benchmarks/fuzz_ports.py)."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.fuzz_ports import SIDES, fuzz
from kvcm.protocol import admin_service_pb2, debug_service_pb2, meta_service_pb2
from kvcm.service.testing_fuzz import DANGEROUS, Findings, Mutator, is_flat
from kvcm.service.testing_fuzz_calls import calls_of

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("side", SIDES)
def test_spoilt_bytes_hurt_nobody(side: str) -> None:
    found = fuzz(side, 3, seed=20261130)
    assert found.problems == []
    assert found.throws > 50
    assert len(found.answers) > 2


def test_fuzzers_start_from_every_rpc() -> None:
    modules = (meta_service_pb2, admin_service_pb2, debug_service_pb2)
    every = {method.name for module in modules for service in module.DESCRIPTOR.services_by_name.values() for method in service.methods}
    assert {call.rpc for call in calls_of()} == every
    assert every > DANGEROUS


def test_spoiling_is_the_same_for_the_same_seed_and_bounded() -> None:
    corpus = [b"abc" * 10, b"GET / HTTP/1.1"]
    first, second = (Mutator(Random(7)) for _ in range(2))
    assert [first.spoil(corpus[0], corpus) for _ in range(200)] == [second.spoil(corpus[0], corpus) for _ in range(200)]
    assert all(b"".join(first.pieces(text)) == text for text in (b"", b"x", corpus[0]))


def test_memory_is_flat_or_it_is_not() -> None:
    assert is_flat([])
    assert is_flat([100 << 20] * 30)
    assert is_flat([50 << 20] * 10 + [100 << 20] * 20)
    assert not is_flat([100 << 20] * 20 + [200 << 20] * 10)


def test_findings_read_well() -> None:
    found = Findings(throws=3, problems=["the process has ended"], rss=[70 << 20, 80 << 20, 75 << 20])
    found.answers.update(["200", "200", "400"])
    assert found.report().splitlines() == [
        "throws 3; answers: 200 2, 400 1",
        "memory in MiB: start 70, thirds 70 80 75, most 80; slowest plain call 0.000 s",
        "PROBLEM the process has ended",
    ]
