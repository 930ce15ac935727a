"""A change that a newer leader has prevented: "ask the leader" where nothing of it is stored, an error of the store where a part may be (design D6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.cut_short import cut_short, cut_short_keys, graver
from kvcm.common.errors import CutShort, ErrorCode, KvcmError, NotLeader, OutcomeUnknown, StorageError, TakenOver
from kvcm.common.redis.fenced import Superseded
from kvcm.config.errors import FencedOut
from kvcm.config.startup import default_group
from kvcm.manager.errors import MetadataFailed
from kvcm.manager.testing import ManagerWorld
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault, SuspendingBackend
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.location_encoder import ProtoLocationEncoder
from kvcm.service.rpc import Call, Dispatcher, Reply, Rpc
from kvcm.service.testing_rpc import Lead, Observed

pytestmark = pytest.mark.unit

REFUSED = FencedOut("a newer leader has it", 7)
PAGE = 512  # of a RemoveCache


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (REFUSED, ErrorCode.SERVER_NOT_LEADER),
        (Superseded("a newer leader has it", 7), ErrorCode.SERVER_NOT_LEADER),
        (TakenOver("a newer leader has it", 7), ErrorCode.SERVER_NOT_LEADER),
        (cut_short(REFUSED, stored=False), ErrorCode.SERVER_NOT_LEADER),
        (cut_short(REFUSED, stored=True), ErrorCode.IO_ERROR),
        (OutcomeUnknown("no answer"), ErrorCode.IO_ERROR),
        (StorageError("refused"), ErrorCode.IO_ERROR),
        (MetadataFailed("refused"), ErrorCode.IO_ERROR),
    ],
)
def test_only_a_change_of_which_nothing_is_stored_is_answered_as_one_of_a_node_that_does_not_lead(error: KvcmError, code: ErrorCode) -> None:
    async def work(request: object, call: Call) -> Reply:
        raise error

    rpc = Rpc("StartWriteCache", meta.StartWriteCacheRequest, meta.StartWriteCacheResponse, work)
    raw = asyncio.run(Dispatcher(FakeClock(), Lead(), Observed()).call(rpc, meta.StartWriteCacheRequest(trace_id="t")))
    status = meta.StartWriteCacheResponse.FromString(raw).header.status
    assert (int(status.code), status.message) == (code, error.message)


def test_each_error_tells_whether_to_repeat_and_who_has_to_act() -> None:
    assert isinstance(REFUSED, StorageError)
    assert (REFUSED.retryable, REFUSED.fixer, REFUSED.fence) == (NotLeader.retryable, NotLeader.fixer, 7)
    half = cut_short(REFUSED, stored=True)
    assert isinstance(half, CutShort)
    assert (half.retryable, half.fixer) == (False, "administrator")
    assert "look before you repeat" in half.message
    plain = StorageError("refused")
    assert cut_short(plain, stored=True) is plain


def test_keys_that_failed_beside_stored_ones_were_cut_short() -> None:
    other = StorageError("refused")
    assert cut_short_keys({1: REFUSED, 2: other}, 2) == {1: REFUSED, 2: other}
    assert cut_short_keys({2: other}, 3) == {2: other}
    told = cut_short_keys({1: REFUSED, 2: other}, 3)
    assert isinstance(told[1], CutShort)
    assert told[2] is other


def test_of_several_errors_one_that_says_nothing_was_done_is_told_last() -> None:
    unknown, refused = OutcomeUnknown("no answer"), StorageError("refused")
    assert graver(None, REFUSED) is REFUSED
    assert graver(REFUSED, unknown) is unknown
    assert graver(unknown, REFUSED) is unknown
    assert graver(unknown, refused) is unknown


async def _world(root: Path) -> ManagerWorld:
    world = ManagerWorld(root, ProtoLocationEncoder(), metadata="suspending")
    await world.simple()
    return world


def test_every_change_of_an_overtaken_leader_is_refused_as_a_whole(tmp_path: Path) -> None:
    async def story() -> None:
        world = await _world(tmp_path)
        await world.put("i", [1, 2])
        write = await world.start("i", [3])
        world.write(write)
        world.stores["i"].highest_fence = 9
        before = dict(world.stores["i"].store)
        shard = world.shard("i")
        for attempt in (
            world.start("i", [4, 5]),
            world.finish(write),
            world.manager.remove_cache(shard, [1, 2]),
            world.manager.remove_cache(shard, list(range(2 * PAGE))),
            world.manager.trim(shard, None),
        ):
            with pytest.raises(TakenOver):
                await attempt
        assert world.stores["i"].store == before
        assert [world.states("i", key) for key in (1, 3, 4)] == [[Status.SERVING], [Status.WRITING], []]

    asyncio.run(story())


def test_a_change_that_was_cut_short_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        world = await _world(tmp_path)
        await world.put("i", [1, 2])
        write = await world.start("i", [3, 4])
        world.write(write)
        world.stores["i"].fenced_keys = {2, 4, 6}
        shard = world.shard("i")
        attempts = (world.start("i", [5, 6]), world.finish(write), world.manager.remove_cache(shard, [1, 2]))
        for attempt in attempts:
            with pytest.raises(StorageError) as caught:
                await attempt
            assert caught.value.code is ErrorCode.IO_ERROR
        assert [world.states("i", key) for key in (1, 2, 3, 4)] == [[Status.DELETING], [Status.SERVING], [Status.SERVING], [Status.WRITING]]

    asyncio.run(story())


@pytest.mark.parametrize("page", [0, 1])
def test_a_removal_of_which_one_page_is_stored_was_cut_short(page: int, tmp_path: Path) -> None:
    async def story() -> None:
        world = await _world(tmp_path)
        keys = list(range(2 * PAGE))
        await world.put("i", [0, PAGE])
        world.stores["i"].fenced_keys = {page * PAGE}
        with pytest.raises(CutShort):
            await world.manager.remove_cache(world.shard("i"), keys)
        assert world.states("i", (1 - page) * PAGE) == [Status.DELETING]
        assert world.states("i", page * PAGE) == [Status.SERVING]

    asyncio.run(story())


def test_a_removal_with_another_failure_does_not_say_that_nothing_was_done(tmp_path: Path) -> None:
    async def story() -> None:
        world = await _world(tmp_path)
        await world.put("i", [0, PAGE])
        world.stores["i"].fenced_keys = {0}
        world.stores["i"].faults.extend([None, Fault.LOST_ANSWER])
        world.stores["i"].failing_reads = 1
        with pytest.raises(MetadataFailed):
            await world.manager.remove_cache(world.shard("i"), list(range(2 * PAGE)))

    asyncio.run(story())


@pytest.mark.parametrize("taken_back", [True, False])
def test_a_registration_whose_blocks_cannot_be_claimed_sends_nobody_to_look_for_a_leader(
    taken_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was put back knows a higher epoch than anybody has: its reason is told, instead of a search for a leader that is not there."""

    async def story() -> None:
        world = await _world(tmp_path)

        async def overtaken(self: object, fence: int) -> None:
            monkeypatch.undo()
            if not taken_back:
                await world.registry_store.apply((), 9)
            raise REFUSED

        monkeypatch.setattr(SuspendingBackend, "raise_fence", overtaken)
        with pytest.raises(StorageError, match="the metadata of instance 'j' cannot be opened") as caught:
            await world.manager.register(world.instance("j", "g"))
        assert caught.value.code is ErrorCode.IO_ERROR
        assert (world.registry.get_instance("j") is None) is taken_back

    asyncio.run(story())


def test_a_change_of_the_configuration_is_refused_as_a_whole(tmp_path: Path) -> None:
    async def story() -> None:
        world = await _world(tmp_path)
        await world.registry_store.apply((), 9)
        with pytest.raises(TakenOver):
            await world.registry.create_group(default_group())
        with pytest.raises(TakenOver):
            await world.manager.remove_instance("i")
        assert world.states("i", 1) == []
        assert world.registry.get_instance("i") is not None

    asyncio.run(story())
