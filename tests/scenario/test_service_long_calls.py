"""One caller's long list must not keep everybody else waiting: while such a call runs, the loop gets its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.errors import InvalidArgument
from kvcm.manager.cache_manager import MAX_KEYS_PER_CALL
from kvcm.manager.testing import ManagerWorld
from kvcm.manager.token_keys import SLICE_TOKENS, token_keys, token_keys_in_slices
from kvcm.meta.location import Status
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import ProtoLocationEncoder
from kvcm.service.cluster import ClusterSnapshot, NodeView
from kvcm.service.meta_service import build_meta_service
from kvcm.service.rpc import Call

pytestmark = pytest.mark.scenario

SLICES = 6
TOKENS = [7] * (SLICE_TOKENS * SLICES)
KEYS = list(range(5000))


class OneNode:
    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot("node")

    async def nodes(self) -> tuple[NodeView, ...]:
        return ()


async def turns_during(work: Awaitable[Any]) -> int:
    """How many turns another task gets until `work` is done."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    await work
    other.cancel()
    return turns


class Unread(list[int]):
    """A list that must not be read."""

    def __iter__(self) -> Any:
        raise AssertionError("the tokens of a call that is refused were hashed")

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the tokens of a call that is refused were hashed")


@pytest.mark.parametrize(
    ("rpc", "request_", "least"),
    [
        ("GetCacheLocation", meta.GetCacheLocationRequest(instance_id="i", query_type=meta.QT_PREFIX_MATCH, token_ids=TOKENS), SLICES - 1),
        ("GetCacheMeta", meta.GetCacheMetaRequest(instance_id="i", token_ids=TOKENS), SLICES - 1),
        ("StartWriteCache", meta.StartWriteCacheRequest(instance_id="i", token_ids=TOKENS, write_timeout_seconds=30), SLICES - 1),
        ("RemoveCache", meta.RemoveCacheRequest(instance_id="i", token_ids=TOKENS), SLICES - 1),
        ("GetCacheMeta", meta.GetCacheMetaRequest(instance_id="i", block_keys=KEYS), 10),
        ("RemoveCache", meta.RemoveCacheRequest(instance_id="i", block_keys=KEYS), 5),
        ("TrimCache", meta.TrimCacheRequest(instance_id="i", strategy=meta.TS_REMOVE_ALL_CACHE), 10),
    ],
)
def test_others_get_their_turns_during_a_long_call(tmp_path: Path, rpc: str, request_: Message, least: int) -> None:
    async def scenario() -> None:
        world = ManagerWorld(tmp_path, ProtoLocationEncoder())
        await world.simple()
        write = await world.start("i", KEYS)
        await world.finish(write, len(write.keys))
        handler = build_meta_service(world.manager, world.registry, OneNode()).rpcs[rpc].handler
        assert await turns_during(handler(request_, Call("r", 1))) >= least
        if rpc != "TrimCache" and not (rpc == "RemoveCache" and request_.block_keys):  # type: ignore[attr-defined]
            assert world.states("i", KEYS[-1]) == [Status.SERVING]
        else:
            assert {tuple(world.states("i", key)) for key in KEYS} == {(Status.DELETING,)}

    asyncio.run(scenario())


@pytest.mark.parametrize("blocks", [MAX_KEYS_PER_CALL + 1, 1 << 20])
def test_a_call_with_too_many_tokens_is_refused_before_they_are_hashed(tmp_path: Path, blocks: int) -> None:
    async def scenario() -> None:
        world = ManagerWorld(tmp_path, ProtoLocationEncoder())
        await world.simple()
        shard = world.shard("i")
        tokens = Unread([1] * (blocks * shard.instance.block_size))
        with pytest.raises(InvalidArgument, match=f"at most {MAX_KEYS_PER_CALL} blocks, not {blocks}"):
            await world.manager.keys_for(shard, (), tokens)

    asyncio.run(scenario())


def test_tokens_that_make_no_block_are_not_hashed() -> None:
    assert asyncio.run(token_keys_in_slices(Unread([1] * 100_000), 2**31 - 1)) == []


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40),
    repeat=st.integers(1, 3 * SLICE_TOKENS // 10),
    block_size=st.sampled_from([1, 3, 16, 127, SLICE_TOKENS - 1, SLICE_TOKENS, SLICE_TOKENS + 1, 2**31 - 1]),
)
def test_slices_make_the_same_keys(tokens: Sequence[int], repeat: int, block_size: int) -> None:
    whole = list(tokens) * repeat
    assert asyncio.run(token_keys_in_slices(whole, block_size)) == token_keys(whole, block_size)
