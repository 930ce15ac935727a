"""One host for all keys (wire contract 4.8): who has the longest prefix, who has most keys, and who wins when several are equal."""

from __future__ import annotations

import pytest

from kvcm.data_storage.model import StorageType
from kvcm.manager.by_backend import BackendSelector, SelectStrategy, peer_of, pick_peer

pytestmark = pytest.mark.unit


def held(*keys: str) -> list[list[str]]:
    """For each key the one-letter names of the peers that hold it."""
    return [list(peers) for peers in keys]


@pytest.mark.parametrize(
    ("holders", "winner"),
    [
        ([], None),
        (held(""), None),
        (held("a"), "a"),
        (held("", "a", "a"), None),  # nobody has the first key
        (held("ab", "b"), "b"),
        (held("ab", "", "b"), "a"),  # a gap ends every run
        (held("ba", "ab"), "a"),
        (held("a", "ab", "b", "b"), "a"),  # b has more, but not from the start
        (held("abc", "bc", "c", "ab", "ab"), "c"),
        (held("abc", "cb", "a"), "b"),
        (held("aab", "ab", "bb"), "b"),  # named twice is held once
    ],
    ids=str,
)
def test_the_prefix_strategy_takes_the_longest_run_from_the_first_key(holders: list[list[str]], winner: str | None) -> None:
    assert pick_peer(holders, prefix=True) == winner


@pytest.mark.parametrize(
    ("holders", "winner"),
    [
        ([], None),
        (held("", ""), None),
        (held("", "a"), "a"),
        (held("a", "b"), "a"),
        (held("b", "a", "b"), "b"),
        (held("a", "ab", "b", "b"), "b"),
        (held("aaa", "b", "b"), "b"),
    ],
    ids=str,
)
def test_the_coverage_strategy_takes_whoever_has_most_keys(holders: list[list[str]], winner: str | None) -> None:
    assert pick_peer(holders, prefix=False) == winner


@pytest.mark.parametrize(
    ("uri", "peer"),
    [
        ("vineyard://10.0.0.1:8080/mem?k=v", "10.0.0.1:8080"),
        ("vineyard://user@host:1/mem", "host:1"),
        ("vineyard://host/mem", "host"),
        ("vineyard:///mem", None),
        ("", None),
        ("host:1/mem", None),
        ("vineyard://host:many/mem", None),
    ],
)
def test_a_peer_is_the_host_and_port_of_a_place(uri: str, peer: str | None) -> None:
    assert peer_of(uri) == peer


def test_only_kinds_that_hosts_report_have_peers() -> None:
    reported = {StorageType.EVENT_REPORT_L1P5, StorageType.EVENT_REPORT_L2}
    naming = {SelectStrategy.PEER_PREFIX, SelectStrategy.PEER_COVERAGE}
    for kind in StorageType:
        for strategy in SelectStrategy:
            assert BackendSelector(kind, strategy).wants_peer == (kind in reported and strategy in naming)
