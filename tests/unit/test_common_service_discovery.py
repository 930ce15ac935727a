"""Service addresses: a static list in turn, and a clear refusal of what is not built (behaviour.md 19)."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import InvalidArgument, KvcmError, Unsupported
from kvcm.common.service_discovery import ServiceEndpoint, open_discovery

pytestmark = pytest.mark.unit


def test_a_static_list() -> None:
    found = open_discovery("static://10.0.0.1:80, manager:6382 ,[::1]:7")
    assert [endpoint.host for endpoint in found.get_all()] == ["10.0.0.1:80", "manager:6382", "[::1]:7"]
    assert found.get_all()[0] == ServiceEndpoint("10.0.0.1", 80, weight=100, healthy=True)
    assert found.type == "static"
    assert found.refresh() is True


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 20), st.integers(1, 5))
def test_I_SD_1_all_members_are_used_equally(members: int, rounds: int) -> None:
    found = open_discovery("static://" + ",".join(f"h{number}:1" for number in range(members)))
    used = Counter(found.get_one().host for _ in range(members * rounds))
    assert set(used.values()) == {rounds}


def test_I_SD_1_holds_among_threads() -> None:
    found = open_discovery("static://a:1,b:1,c:1")
    with ThreadPoolExecutor(8) as pool:
        used = Counter(pool.map(lambda _: found.get_one().ip, range(300)))
    assert used == {"a": 100, "b": 100, "c": 100}


@pytest.mark.parametrize("url", ["vipserver://kvcm.example", "vipserver://kvcm?timeout=3", "spectrum://kvcm?cache_time=30&retry_time=0&timeout=5000&port=6382"])
def test_agents_that_are_not_built_are_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(Unsupported, match=r"use static://host:port"):
        open_discovery(url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "starts with static://"),
        ("host:1", "starts with static://"),
        ("consul://a", "starts with static://"),
        ("static://", "at least one host:port"),
        ("static://a", "must be host:port"),
        ("static://a:0", "must be host:port"),
        ("static://a:65536", "must be host:port"),
        ("static://a:٣", "must be host:port"),
        ("static://::1:7", "must be host:port"),
        ("static://u@a:1", "must be host:port"),
        ("static://a:1?x=1", "has no parameters"),
        ("static://" + ",".join("a:1" for _ in range(300)), "at most 256"),
        ("static://" + "a" * 20_000, "characters"),
        ("spectrum://", "exactly one service"),
        ("spectrum://a,b", "exactly one service"),
        ("spectrum://a?speed=1", "has no parameter 'speed'"),
        ("vipserver://a?timeout=soon", "whole number"),
        ("vipserver://a?timeout", "key=value"),
        ("vipserver://a?timeout=1&timeout=2", "each key once"),
    ],
)
def test_typing_errors_are_told_apart(url: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        open_discovery(url)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=40), st.sampled_from(["", "static://", "spectrum://", "vipserver://"]))
def test_nothing_else_ever_comes_out(text: str, scheme: str) -> None:
    try:
        found = open_discovery(scheme + text)
    except KvcmError:
        return
    assert found.get_one() in found.get_all()
