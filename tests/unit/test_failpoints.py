"""Fail points: what arms them, when they strike, and that none exists unless a test asks for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvcm.common.errors import InvalidArgument, OutcomeUnknown, StorageError
from kvcm.common.failpoints import MAX_ARMED, OPERATIONS, POINTS, Armed, FailPoints, parse_armed, parse_fail_points
from kvcm.config.errors import SettingsError
from kvcm.config.failing import FailingStore
from kvcm.config.settings_load import load_settings
from kvcm.config.store import open_store
from kvcm.config.store_local import LocalStore
from kvcm.config.store_memory import MemoryStore
from kvcm.protocol import debug_service_pb2 as debug
from kvcm.service.debug_service import build_debug_service
from kvcm.service.rpc import Call
from kvcm.service.testing_rpc import RpcDesk

pytestmark = pytest.mark.unit

DEBUG = "kvcm.service.enable_debug_service=true"


class Crashed(Exception):
    pass


def crash() -> None:
    raise Crashed


def passes(points: FailPoints, point: str, times: int) -> list[str]:
    """What each pass came to: the name of the error, or nothing."""

    async def run() -> list[str]:
        found = []
        for _ in range(times):
            try:
                await points.at(point)
                found.append("")
            except (StorageError, Crashed) as error:
                found.append(type(error).__name__)
        return found

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "armed"),
    [
        ("blocks.add.after/crash", Armed("blocks.add.after", "crash")),
        ("blocks.add.before/error@3", Armed("blocks.add.before", "error", at=3)),
        ("registry.apply.after/unknown@*", Armed("registry.apply.after", "unknown", at=0)),
        ("bytes.delete.before/delay=250@2", Armed("bytes.delete.before", "delay", 250, 2)),
    ],
)
def test_what_arms_a_point(text: str, armed: Armed) -> None:
    assert parse_armed(text) == armed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "blocks.add",
        "blocks.add.after",
        "blocks.add/crash",
        "nothing.before/crash",
        "blocks.add.after/",
        "blocks.add.after/explode",
        "blocks.add.after/error",
        "blocks.add.after/crash=3",
        "blocks.add.after/delay",
        "blocks.add.after/delay=0",
        "blocks.add.after/delay=60001",
        "blocks.add.after/delay=-1",
        "blocks.add.after/crash@0",
        "blocks.add.after/crash@",
        "blocks.add.after/crash@x",
        "blocks.add.after/crash@1000001",
        "blocks.add.after/crash@\u0663",
    ],
)
def test_what_arms_nothing_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_armed(text)


def test_a_list_is_bounded_and_on_arms_nothing() -> None:
    assert parse_fail_points("on") == []
    assert [armed.point for armed in parse_fail_points("on, blocks.add.after/crash ,blocks.bury.after/crash")] == ["blocks.add.after", "blocks.bury.after"]
    with pytest.raises(InvalidArgument):
        parse_fail_points(",".join(["blocks.add.after/crash"] * (MAX_ARMED + 1)))


def test_it_strikes_at_the_pass_it_was_armed_for_and_once() -> None:
    points = FailPoints("blocks.add.before/error@3,blocks.bury.after/unknown@*,bytes.delete.after/crash", crash)
    assert passes(points, "blocks.add.before", 5) == ["", "", "StorageError", "", ""]
    assert passes(points, "blocks.bury.after", 3) == ["OutcomeUnknown"] * 3
    assert passes(points, "bytes.delete.after", 2) == ["Crashed", ""]
    assert passes(points, "blocks.serve.after", 1) == [""]
    points.disarm("blocks.bury.after")
    assert passes(points, "blocks.bury.after", 1) == [""]
    points.arm(parse_armed("blocks.serve.after/delay=1"))
    assert passes(points, "blocks.serve.after", 2) == ["", ""]
    points.arm(parse_armed("blocks.serve.after/unknown"))
    points.clear()
    assert passes(points, "blocks.serve.after", 1) == [""]


def test_threads_pass_points_too() -> None:
    points = FailPoints("registry.replace.before/unknown@2,registry.replace.after/delay=1", crash)
    points.passing("registry.replace.before")
    with pytest.raises(OutcomeUnknown):
        points.passing("registry.replace.before")
    points.passing("registry.replace.after")


def test_both_sides_of_every_operation_are_points() -> None:
    assert len(POINTS) == 2 * len(OPERATIONS) == len(set(POINTS))


def test_they_need_the_debug_service_and_are_said() -> None:
    with pytest.raises(SettingsError, match="enable_debug_service"):
        load_settings(None, ["kvcm.debug.fail_points=on"], {})
    with pytest.raises(SettingsError, match="POINT/ACTION"):
        load_settings(None, [DEBUG, "kvcm.debug.fail_points=blocks.add/crash"], {})
    loaded = load_settings(None, [DEBUG, "kvcm.debug.fail_points=on"], {})
    assert [warning for warning in loaded.warnings if "fail_points" in warning] != []
    assert load_settings(None, [DEBUG], {}).settings.debug_fail_points == ""


def test_without_them_the_stores_are_used_as_they_are(tmp_path: Path) -> None:
    assert isinstance(open_store(""), MemoryStore)
    assert isinstance(open_store(f"local://{tmp_path}/r"), LocalStore)
    assert isinstance(open_store("", FailPoints()), FailingStore)


def test_the_debug_service_arms_and_disarms(tmp_path: Path) -> None:
    async def run() -> None:
        desk = RpcDesk(tmp_path)
        await desk.open()
        points = FailPoints()
        service, without = build_debug_service(desk.dispatcher, points), build_debug_service(desk.dispatcher)

        async def code(of: object, rpc: str, request: object) -> int:
            found, _ = await of.rpcs[rpc].handler(request, Call("", 0))  # type: ignore[attr-defined]
            return int(found)

        arm = debug.InjectFaultRequest(api_name="fail_point/blocks.add.after/unknown@*")
        assert await code(without, "InjectFault", arm) == debug.INVALID_ARGUMENT
        assert await code(service, "InjectFault", debug.InjectFaultRequest(api_name="fail_point/x/crash")) == debug.INVALID_ARGUMENT
        assert await code(service, "InjectFault", arm) == debug.OK
        with pytest.raises(OutcomeUnknown):
            await points.at("blocks.add.after")
        assert await code(service, "RemoveFault", debug.RemoveFaultRequest(api_name="fail_point/blocks.add.after")) == debug.OK
        await points.at("blocks.add.after")
        assert await code(service, "InjectFault", arm) == debug.OK
        assert await code(service, "ClearFaults", debug.ClearFaultsRequest()) == debug.OK
        await points.at("blocks.add.after")
        assert desk.dispatcher.faults is None

    asyncio.run(run())
