"""What a choice of one peer for all keys promises (wire contract 4.8), against the definition said the slow way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.manager.by_backend import pick_peer

pytestmark = pytest.mark.property

HOLDERS = st.lists(st.lists(st.sampled_from("abcd"), max_size=4), max_size=8)


def run_length(holders: list[list[str]], peer: str) -> int:
    return next((at for at, peers in enumerate(holders) if peer not in peers), len(holders))


@given(HOLDERS)
@settings(deadline=None, max_examples=300)
def test_the_chosen_peer_has_the_longest_run_or_most_keys_and_is_the_first_of_equals(holders: list[list[str]]) -> None:
    everybody = sorted({peer for peers in holders for peer in peers})
    for prefix in (True, False):
        score = {peer: run_length(holders, peer) if prefix else sum(peer in peers for peers in holders) for peer in everybody}
        best = max(score.values(), default=0)
        assert pick_peer(holders, prefix=prefix) == (next(peer for peer in everybody if score[peer] == best) if best else None)


@given(HOLDERS, st.permutations("abcd"))
@settings(deadline=None, max_examples=100)
def test_the_choice_does_not_depend_on_the_order_in_which_peers_are_stored(holders: list[list[str]], order: list[str]) -> None:
    shuffled = [sorted(peers, key=order.index) for peers in holders]
    for prefix in (True, False):
        assert pick_peer(shuffled, prefix=prefix) == pick_peer(holders, prefix=prefix)
