"""What upstream's own client asks of a manager over gRPC (wire contract 8.3, `client_test`; 4.12, 4.13), with two specs per block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvcm.client import ClientConfig, MetaClient
from kvcm.client.errors import ClientError, ClientErrorCode
from kvcm.service.testing_blocks import SIZE, Engine, wait_until
from kvcm.service.testing_dropin import DropIn
from kvcm.service.testing_wire import META, GrpcWire, HttpWire

pytestmark = pytest.mark.integration

KEYS = [1, 2, 3, 4]
SPECS = ["tp0", "tp1"]


@pytest.fixture(scope="module")
def manager() -> Iterator[DropIn]:
    with DropIn() as process:
        yield process


@pytest.fixture
def engine(manager: DropIn, tmp_path: Path, request: pytest.FixtureRequest) -> Engine:
    engine = Engine(GrpcWire(manager.meta_address, META), HttpWire(manager.admin_http_url), tmp_path)
    engine.set_up("".join(char if char.isalnum() else "-" for char in request.node.name), "nfs", SPECS)
    return engine


def finish_code(engine: Engine, **request: Any) -> str:
    return engine.refused("FinishWriteCache", instance_id=engine.name, **request)[0]


# -- starting ------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "being written"])
@pytest.mark.parametrize(
    ("keys", "mask", "fresh"),
    [
        (KEYS, {"offset": 4}, []),
        ([1, 2, 3, 4, 5, 6], {"offset": 4}, [5, 6]),
        ([3, 4, 7, 8], {"offset": 2}, [7, 8]),
        ([1, 55, 66, 2], {"bool_masks": {"values": [True, False, False, True]}}, [55, 66]),
        ([9, 10], {"offset": 0}, [9, 10]),
    ],
    ids=str,
)
def test_what_a_second_write_has_to_write(engine: Engine, keys: Sequence[int], mask: dict[str, Any], fresh: list[int], finished: bool) -> None:
    first = engine.start(KEYS)
    assert (first.mask, first.keys) == ({"offset": 0}, KEYS)
    if finished:
        engine.save(first)
        engine.finish(first)
    second = engine.start(keys)
    assert (second.mask, second.keys) == (mask, fresh)
    for write in (first, second):
        assert [list(places) for places in write.places] == [SPECS] * len(write.keys)
        assert all(uri for places in write.places for uri in places.values())


def test_the_worked_cases_one_after_the_other(engine: Engine) -> None:
    for keys, mask, count in (
        ([1, 2, 3, 4], {"offset": 0}, 4),
        ([1, 2, 3, 4], {"offset": 4}, 0),
        ([1, 2, 3, 4, 5, 6], {"offset": 4}, 2),
        ([5, 6, 7, 8], {"offset": 2}, 2),
        ([5, 55, 66, 6], {"bool_masks": {"values": [True, False, False, True]}}, 2),
    ):
        write = engine.start(keys)
        assert (write.mask, len(write.locations)) == (mask, count)


def test_a_session_is_opened_even_when_there_is_nothing_to_write(engine: Engine) -> None:
    engine.put(KEYS)
    empty = engine.start(KEYS)
    assert empty.keys == []
    engine.finish(empty)
    assert finish_code(engine, write_session_id=empty.session, success_blocks={"offset": 0}) == "INTERNAL_ERROR"


@pytest.mark.parametrize("seconds", [10_000_000, (1 << 31) - 1])
def test_a_huge_timeout_is_capped_and_does_not_overflow(engine: Engine, seconds: int) -> None:
    write = engine.start(KEYS, write_timeout_seconds=seconds)
    engine.save(write)
    engine.finish(write)
    assert engine.prefix(KEYS) == write.places


@pytest.mark.parametrize("seconds", [0, -1])
def test_without_time_a_write_is_over_at_once_and_its_blocks_can_be_written_anew(engine: Engine, seconds: int) -> None:
    late = engine.start(KEYS, write_timeout_seconds=seconds)
    engine.wait_gone(KEYS)
    assert finish_code(engine, write_session_id=late.session, success_blocks={"offset": 4}) == "INTERNAL_ERROR"
    assert engine.put(KEYS).keys == KEYS


# -- finishing -----------------------------------------------------------------------------------------------------------------------------------


def test_a_wrong_session_is_an_internal_error(engine: Engine) -> None:
    write = engine.start(KEYS)
    assert finish_code(engine, write_session_id="wrong", success_blocks={"offset": 4}) == "INTERNAL_ERROR"
    engine.finish(write)


@pytest.mark.parametrize("mask", [{"bool_masks": {"values": [True, True]}}, {"offset": 5}, {"offset": -1}, {}])
def test_a_mask_that_does_not_fit_costs_the_session(engine: Engine, mask: dict[str, Any]) -> None:
    """As with upstream; `kvcm serve` leaves it open. Unlike upstream the blocks can be written anew: nobody holds them any more."""
    write = engine.start(KEYS)
    engine.save(write)
    assert finish_code(engine, write_session_id=write.session, success_blocks=mask) == "INVALID_ARGUMENT"
    assert finish_code(engine, write_session_id=write.session, success_blocks={"offset": 4}) == "INTERNAL_ERROR"
    wait_until(lambda: engine.states(KEYS) == [["CLS_NOT_FOUND"]] * 4, "the blocks are given up")


def test_a_session_can_be_finished_once(engine: Engine) -> None:
    write = engine.start(KEYS)
    engine.save(write)
    engine.finish(write)
    assert finish_code(engine, write_session_id=write.session, success_blocks={"offset": 4}) == "INTERNAL_ERROR"
    assert engine.prefix(KEYS) == write.places


@pytest.mark.parametrize("missing", ["write_session_id", "success_blocks"])
def test_a_finish_without_its_fields_is_refused_and_names_them(engine: Engine, missing: str) -> None:
    write = engine.start(KEYS)
    whole = {"write_session_id": write.session, "success_blocks": {"offset": 4}}
    code, message = engine.refused("FinishWriteCache", instance_id=engine.name, **{name: value for name, value in whole.items() if name != missing})
    assert (code, missing in message) == ("INVALID_ARGUMENT", True)
    engine.finish(write)


def test_the_mask_of_a_finish_counts_the_blocks_that_were_handed_out(engine: Engine) -> None:
    engine.put([1, 2])
    write = engine.start(KEYS)
    engine.ok(engine.meta, "FinishWriteCache", **engine.finishing(write, {"offset": 1}))
    wait_until(lambda: engine.states(KEYS)[2:] == [["CLS_SERVING"], ["CLS_NOT_FOUND"]], "the block that was not written is gone")


# -- reading -------------------------------------------------------------------------------------------------------------------------------------


def test_unfinished_blocks_are_not_seen_and_finished_ones_are_as_they_were_handed_out(engine: Engine) -> None:
    write = engine.start(KEYS)
    assert engine.prefix(KEYS) == []
    engine.save(write)
    engine.finish(write, [True, True, False, False])
    found = engine.prefix_locations(KEYS)
    assert found == write.locations[:2]
    assert [location["spec_size"] for location in found] == [2, 2]


def test_a_mask_leaves_keys_out_of_a_read(engine: Engine) -> None:
    write = engine.put([1, 2, 3])
    assert engine.prefix([1, 2, 3], block_mask={"offset": 1}) == write.places[1:]
    assert engine.prefix([1, 2, 3], block_mask={"offset": 6}) == []
    assert engine.prefix([1, 2, 3], block_mask={"bool_masks": {"values": [False, True, False]}}) == [write.places[0], write.places[2]]


# -- creating a client ---------------------------------------------------------------------------------------------------------------------------


def config(manager: DropIn, engine: Engine, **changes: Any) -> ClientConfig:
    deployment = {"model_name": "m", "dtype": "FP8", "tp_size": len(SPECS)} | changes.pop("model_deployment", {})
    whole = {
        "address": [manager.meta_address],
        "instance_group": engine.name,
        "instance_id": engine.name,
        "block_size": 8,
        "location_spec_infos": dict.fromkeys(SPECS, SIZE),
        "model_deployment": deployment,
    }
    return ClientConfig.parse(whole | changes)


def test_a_client_for_a_registered_instance_gets_its_storages(manager: DropIn, engine: Engine) -> None:
    with MetaClient.connect(config(manager, engine)) as client:
        assert engine.name in client.get_storage_config()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model_deployment": {"model_name": "another"}}, ClientErrorCode.SERVICE_DUPLICATE_ENTITY),
        ({"block_size": 16}, ClientErrorCode.SERVICE_DUPLICATE_ENTITY),
        ({"instance_id": "new", "instance_group": "nobody"}, ClientErrorCode.SERVICE_INSTANCE_NOT_EXIST),
    ],
    ids=["another model", "another block size", "an unknown group"],
)
def test_a_client_that_may_not_register_cannot_be_made(manager: DropIn, engine: Engine, changes: dict[str, Any], code: ClientErrorCode) -> None:
    with pytest.raises(ClientError) as raised:
        MetaClient.connect(config(manager, engine, **changes))
    assert raised.value.client_code == code
