"""The reads of MetaService beside GetCacheLocation, through the bytes of the wire (wire contract 4.7, 4.8, 4.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from kvcm.common.errors import ErrorCode
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.json_codec import message_to_plain
from kvcm.service.testing_rpc import OPEN, SERVED, RpcDesk

pytestmark = pytest.mark.unit

PREFIX, BATCH, WINDOW = meta.QT_PREFIX_MATCH, meta.QT_BATCH_GET, meta.QT_REVERSE_ROLL_SW_MATCH
BIG = (1 << 63) - 1


def run(root: Path, story: Callable[[RpcDesk], Awaitable[None]]) -> None:
    async def whole() -> None:
        desk = RpcDesk(root)
        await desk.open()
        await story(desk)

    asyncio.run(whole())


def plain_of(reply: Any) -> dict[str, Any]:
    plain: Any = message_to_plain(reply)
    return dict(plain)


async def ok(desk: RpcDesk, name: str, **fields: Any) -> Any:
    request = getattr(meta, f"{name}Request")(trace_id="t", **{"instance_id": "i"} | fields)
    code, message, reply = await desk.call(name, request)
    assert (code, message) == (ErrorCode.OK, "")
    assert reply.header.request_id.startswith("t_")
    return reply


@pytest.mark.parametrize(
    ("query_type", "keys", "window", "length"),
    [
        (PREFIX, [1, 2, 3], 0, 3),
        (PREFIX, [1, 2, 7, 3], 0, 2),
        (PREFIX, [9, 1], 0, 0),
        (PREFIX, [*SERVED, *OPEN], -5, 3),
        (BATCH, [1, 7, 2, 9, 3, 3], 0, 4),
        (BATCH, [9], 0, 0),
        (WINDOW, [1, 2, 9, 3], 2, 2),
        (WINDOW, [1, 2, 9, 3], 1, 1),
        (WINDOW, [1, 9, 3], 2, 0),
    ],
)
def test_the_length_is_the_number_of_locations_that_the_same_read_would_find(
    query_type: meta.QueryType, keys: list[int], window: int, length: int, tmp_path: Path
) -> None:
    async def story(desk: RpcDesk) -> None:
        fields = {"query_type": query_type, "block_keys": keys, "sw_size": window}
        assert (await ok(desk, "GetCacheLocationLen", **fields)).cache_location_len == length
        found = await ok(desk, "GetCacheLocation", **fields)
        assert sum(any(spec.uri for spec in location.location_specs) for location in found.locations) == length

    run(tmp_path, story)


def test_a_length_of_tokens_shorter_than_a_block_is_nothing(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        assert (await ok(desk, "GetCacheLocationLen", query_type=PREFIX, token_ids=[1, 2, 3])).cache_location_len == 0

    run(tmp_path, story)


def test_a_length_counts_as_a_read(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        log = desk.world.shard("i").index.access
        before = log.own_time_us(2)
        desk.world.clock.advance_us(5)
        await ok(desk, "GetCacheLocationLen", query_type=PREFIX, block_keys=[1, 2])
        assert log.own_time_us(2) != before

    run(tmp_path, story)


def test_a_reply_by_backend_has_one_entry_per_key_also_for_misses(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        selectors = [meta.BackendLocationSelector(backend_type=kind) for kind in (meta.ST_3FS, meta.ST_NFS, meta.ST_NFS)]
        fields = {"query_type": BATCH, "backend_selectors": selectors}
        found = await ok(desk, "GetCacheLocationsByBackend", block_keys=[9, 1, 7, 2], block_mask=meta.BlockMask(offset=4), sw_size=99, **fields)
        plain = await ok(desk, "GetCacheLocation", query_type=BATCH, block_keys=[1, 2])
        one, two = plain.locations
        assert [list(entry.locations) for entry in found.key_locations] == [[], [one, one], [], [two, two]]
        found = await ok(desk, "GetCacheLocationsByBackend", block_keys=[1, 2], location_spec_names=["unknown"], **fields)
        assert [list(entry.locations) for entry in found.key_locations] == [[], []]
        assert plain_of(found)["key_locations"] == [{"locations": []}, {"locations": []}]
        found = await ok(desk, "GetCacheLocationsByBackend", block_keys=[1], location_spec_names=["tp1"], **fields)
        (shown, _) = found.key_locations[0].locations
        assert (shown.type, shown.spec_size, list(shown.location_specs)) == (meta.ST_NFS, 1, [one.location_specs[1]])
        found = await ok(desk, "GetCacheLocationsByBackend", token_ids=[1, 2, 3], **fields)
        assert list(found.key_locations) == []

    run(tmp_path, story)


def test_details_show_every_location_of_a_block_with_its_state(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        world = desk.world
        await world.manager.remove_cache(world.shard("i"), [3])
        again = await world.start("i", [3], timeout_s=600)
        reply = await ok(desk, "GetCacheMetaDetail", block_keys=[3, 9, 7, 2], detail_level=9)
        old, gone, open_, served = reply.items
        assert [item.request_index for item in reply.items] == [0, 1, 2, 3]
        assert [item.block_key for item in reply.items] == [3, 9, 7, 2]
        assert all(item.status == meta.Status(code=meta.OK) for item in reply.items)
        states = [[location.status for location in item.locations] for item in reply.items]
        assert states == [[meta.CLS_DELETING, meta.CLS_WRITING], [meta.CLS_NOT_FOUND], [meta.CLS_WRITING], [meta.CLS_SERVING]]
        assert gone.locations[0] == meta.CacheLocationDetail()
        stored = {location.location_id: location for _, _, location in world.locations()}
        for item in (old, open_, served):
            for shown in item.locations:
                location = stored[shown.location_id]
                assert (shown.type, shown.spec_size, shown.create_time) == (meta.ST_NFS, 2, location.create_time_us)
                assert [spec.uri for spec in shown.location_specs] == world.uris_of(location)
        assert {spec.name: spec.uri for spec in old.locations[1].location_specs} == again.uris[0]

    run(tmp_path, story)


def test_details_name_the_key_in_front_in_the_request_that_wrote_the_block(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        await desk.world.put("i", [3, -4, BIG])  # 3 is there already, and it is the key in front all the same
        reply = await ok(desk, "GetCacheMetaDetail", block_keys=[1, 2, -4, BIG, 8, 9])
        assert [item.prev_block_key for item in reply.items] == ["", "1", "3", "-4", "7", ""]
        assert [dict(item.properties) for item in reply.items[:-1]] == [{"BP#prev_key": item.prev_block_key} for item in reply.items[:-1]]
        assert dict(reply.items[-1].properties) == {}

    run(tmp_path, story)


def test_details_of_unmasked_keys_keep_their_places_in_the_request(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        async def indexes(mask: meta.BlockMask) -> list[tuple[int, int]]:
            reply = await ok(desk, "GetCacheMetaDetail", block_keys=[5, 6, 1, 2], block_mask=mask)
            return [(item.request_index, item.block_key) for item in reply.items]

        assert await indexes(meta.BlockMask(offset=2)) == [(2, 1), (3, 2)]
        assert await indexes(meta.BlockMask(bool_masks={"values": [True, False, True]})) == [(1, 6), (3, 2)]
        assert await indexes(meta.BlockMask(offset=4)) == []

    run(tmp_path, story)


def test_details_in_json_have_the_forms_of_the_contract(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        reply = await ok(desk, "GetCacheMetaDetail", block_keys=[2, 9])
        items = plain_of(reply)["items"]
        assert items[0] | {"locations": 0} == {
            "request_index": 0,
            "block_key": "2",
            "prev_block_key": "1",
            "properties": {"BP#prev_key": "1"},
            "locations": 0,
            "status": {"code": "OK", "message": ""},
        }
        assert items[1]["locations"] == [
            {"location_id": "", "status": "CLS_NOT_FOUND", "type": "ST_UNSPECIFIED", "spec_size": 0, "create_time": "0", "location_specs": []}
        ]
        assert MessageToDict(reply)["items"][0]["locations"][0]["status"] == "CLS_SERVING"

    run(tmp_path, story)


def test_many_details_come_in_one_reply_while_others_run(tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        call = asyncio.create_task(ok(desk, "GetCacheMetaDetail", block_keys=list(range(1000))))
        await asyncio.sleep(0)
        turns = 0
        while not call.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 10
        assert [item.block_key for item in call.result().items] == list(range(1000))

    run(tmp_path, story)


@pytest.mark.parametrize("name", ["GetCacheLocationLen", "GetCacheLocationsByBackend", "GetCacheMetaDetail"])
def test_a_read_changes_nothing(name: str, tmp_path: Path) -> None:
    async def story(desk: RpcDesk) -> None:
        before = desk.state()
        more = {"GetCacheMetaDetail": {}, "GetCacheLocationLen": {"query_type": PREFIX}}.get(
            name, {"query_type": BATCH, "backend_selectors": [meta.BackendLocationSelector(backend_type=meta.ST_NFS)]}
        )
        await ok(desk, name, block_keys=[*SERVED, *OPEN, 9], **more)
        assert desk.state() == before

    run(tmp_path, story)
