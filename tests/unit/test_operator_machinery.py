"""Queue, back-off, locks, dependencies, settings, addresses, probes and metrics of the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import InvalidArgument, NotFound, NotReady
from kvcm_operator.dependencies import Dependencies
from kvcm_operator.directory import Directory, parse_overrides
from kvcm_operator.health import MAX_WATCH_LAG_S, Health
from kvcm_operator.locks import Locks
from kvcm_operator.runtime import Runtime
from kvcm_operator.settings import from_environment
from kvcm_operator.sight import PATIENCE_S, Sight
from kvcm_operator.testing import FakeKube
from kvcm_operator.testing_house import House, group, manager, storage
from kvcm_operator.workqueue import CAP_S, WorkQueue, back_off
from kvcm_operator.world import GROUP, MANAGER, STORAGE, Json, Ref

pytestmark = pytest.mark.unit

ONE, TWO = Ref(STORAGE, "default", "one"), Ref(STORAGE, "default", "two")


# -- the queue --------------------------------------------------------------------------------------------------------------------------------


def test_back_off_doubles_up_to_its_cap_and_varies_a_little() -> None:
    delays = [back_off(failures, Random(1)) for failures in range(12)]
    assert 1.5 <= delays[0] <= 2.0
    assert all(CAP_S * 0.75 <= delay <= CAP_S for delay in delays[8:])
    assert delays == sorted(delays)
    assert back_off(10_000, Random(1)) <= CAP_S


def queue_story(work: Any, story: Any, **options: int) -> None:
    async def told() -> None:
        queue = WorkQueue(work, Random(1), **options)
        queue.start()
        try:
            async with asyncio.timeout(10):
                await story(queue)
        finally:
            await queue.stop()

    asyncio.run(told())


def test_an_object_waits_once_and_is_looked_at_again_when_it_moves_meanwhile() -> None:
    seen: list[Ref] = []
    inside, go_on, twice = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(ref: Ref) -> None:
        seen.append(ref)
        if len(seen) == 2:
            twice.set()
        inside.set()
        await go_on.wait()

    async def story(queue: WorkQueue) -> None:
        queue.add_all([ONE, ONE, ONE])
        await inside.wait()
        queue.add_all([ONE, ONE])
        assert len(queue) == 1
        go_on.set()
        await twice.wait()
        assert len(queue) == 0

    queue_story(work, story, workers=1)
    assert seen == [ONE, ONE]


def test_a_failure_comes_back_later_and_does_not_stop_the_others() -> None:
    done = asyncio.Event()

    async def work(ref: Ref) -> None:
        if ref == ONE:
            raise NotReady("away")
        done.set()

    async def story(queue: WorkQueue) -> None:
        queue.add_all([ONE, TWO])
        await done.wait()
        assert len(queue) == 1  # ONE waits for its second try

    queue_story(work, story, workers=1)


def test_of_several_wishes_the_earliest_counts_and_what_does_not_fit_is_dropped() -> None:
    done = asyncio.Event()

    async def work(ref: Ref) -> None:
        done.set()

    async def story(queue: WorkQueue) -> None:
        queue.add(ONE, 3600)
        queue.add(TWO, 3600)
        assert queue.dropped == 1
        queue.add(ONE, 7200)
        queue.add(ONE)
        await done.wait()
        queue.add(TWO, 3600)
        queue.forget(TWO)
        assert len(queue) == 0

    queue_story(work, story, capacity=1)


def test_one_pass_at_a_time_for_one_object_and_no_memory_of_idle_ones() -> None:
    running, most = 0, 0

    async def told() -> None:
        locks = Locks()

        async def one(ref: Ref) -> None:
            nonlocal running, most
            async with locks.hold(ref):
                running += ref == ONE
                most = max(most, running)
                await asyncio.sleep(0)
                running -= ref == ONE

        await asyncio.gather(*(one(ref) for ref in [ONE, TWO] * 5))
        assert len(locks) == 0

    asyncio.run(told())
    assert most == 1


# -- dependencies -----------------------------------------------------------------------------------------------------------------------------


def stamped(body: Json, uid: str, **meta: Any) -> Json:
    return {**body, "metadata": {**body["metadata"], "uid": uid, "generation": 1, **meta}}


BOSS, FAST, CHAT = Ref(MANAGER, "default", "demo"), Ref(STORAGE, "default", "fast"), Ref(GROUP, "default", "chat")


def known() -> Dependencies:
    found = Dependencies()
    for number, body in enumerate((manager(), storage(), group())):
        found.saw(stamped(body, f"u{number}"))
    return found


def test_a_manager_wakes_storages_before_groups_and_only_when_something_moved() -> None:
    found = known()
    boss = stamped(manager(), "u0")
    assert found.saw(boss) == []
    boss["status"] = {**boss["status"], "counts": {"storages": 7}}
    assert found.saw(boss) == []
    assert found.saw(stamped(manager(available=False), "u0")) == [FAST, CHAT]
    assert found.gone(boss) == [FAST, CHAT]


def test_a_storage_wakes_its_manager_its_groups_and_its_rivals() -> None:
    found = known()
    found.saw(stamped(storage("other", name="fast"), "u9"))
    registered = stamped(storage(), "u1")
    registered["status"] = {"registered": True, "serverName": "fast"}
    assert found.saw(registered) == [BOSS, Ref(STORAGE, "default", "other"), CHAT]
    assert found.saw(registered) == []


def test_a_group_that_goes_wakes_storages_that_wait_for_it() -> None:
    found = known()
    found.saw(stamped(storage(), "u1", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert found.gone(stamped(group(), "u2")) == [FAST, BOSS]


def test_parts_wake_their_manager_and_nobody_elses() -> None:
    found = known()
    meta = {"name": "demo-0", "namespace": "default", "uid": "p", "labels": {"kvcm.io/manager": "demo"}}
    body: Json = {"kind": "Pod", "metadata": meta, "status": {"phase": "Pending"}}
    assert found.saw(body) == [BOSS]
    assert found.saw(body) == []
    assert found.saw({**body, "status": {"phase": "Running"}}) == [BOSS]
    assert found.gone(body) == [BOSS]


def test_the_same_names_in_another_namespace_are_other_objects() -> None:
    found = known()
    foreign = manager()
    foreign["metadata"]["namespace"] = "elsewhere"
    assert found.saw(stamped(foreign, "u7")) == []


# -- settings and addresses -------------------------------------------------------------------------------------------------------------------


def test_settings_have_defaults_and_refuse_nonsense() -> None:
    plain = from_environment({})
    assert (plain.lease, plain.drift_s, plain.namespaces, plain.http_port) == (True, 60.0, (), 8080)
    given = from_environment({"KVCM_OPERATOR_NAMESPACES": "a, b", "KVCM_OPERATOR_LEASE": "off", "KVCM_OPERATOR_DRIFT_SECONDS": "5"})
    assert (given.namespaces, given.lease, given.drift_s) == (("a", "b"), False, 5.0)
    for name, value in (("LEASE", "maybe"), ("DRIFT_SECONDS", "0"), ("DRIFT_SECONDS", "nan"), ("LOG_LEVEL", "loud"), ("HTTP_PORT", "x")):
        with pytest.raises(InvalidArgument, match=f"KVCM_OPERATOR_{name}"):
            from_environment({f"KVCM_OPERATOR_{name}": value})


def test_a_manager_is_reached_through_its_service_or_where_it_was_said() -> None:
    directory = Directory(parse_overrides("default/demo=127.0.0.1:7000, other/x=[::1]:1"), "cluster.local", FakeKube(FakeClock()))
    assert directory.address("default", "demo", 6491) == "127.0.0.1:7000"
    assert directory.overridden("other", "x")
    assert directory.address("team", "demo", 6491) == "demo-leader.team.svc.cluster.local.:6491"
    assert directory.addresses("default", "demo", 6491) == ("127.0.0.1:7000",)
    assert directory.addresses("team", "demo", 6491)[1] == "demo.team.svc.cluster.local.:6491"
    for text in ("demo=1.2.3.4:1", "a/b=host", "a/b=host:0", "a/b=:1", "a/b"):
        with pytest.raises(InvalidArgument, match="namespace/name=host:port"):
            parse_overrides(text)


# -- probes and metrics -----------------------------------------------------------------------------------------------------------------------


def test_a_watch_that_hangs_is_found_by_what_reading_shows() -> None:
    clock, found = FakeClock(), known()
    health = Health(clock, found.version)
    health.read(FAST, ("u1", 1))
    assert health.watch_lag_s() == 0
    health.read(FAST, ("u1", 2))
    clock.advance_us(int(MAX_WATCH_LAG_S * 1e6) - 1)
    assert health.alive()
    clock.advance_us(1)
    assert not health.alive()
    found.saw(stamped(storage(), "u1", generation=2))
    assert health.alive()


def test_an_object_that_was_made_again_has_not_been_seen_although_its_generation_has() -> None:
    clock, found = FakeClock(), known()
    health = Health(clock, found.version)
    health.read(FAST, ("u1", 1))
    assert health.missing() == {}
    health.read(FAST, ("another", 1))
    clock.advance_us(int(MAX_WATCH_LAG_S * 1e6))
    assert not health.alive()
    # And again: that one is missing only from now on.
    health.read(FAST, ("third", 1))
    assert health.watch_lag_s() == 0
    clock.advance_us(1)
    found.saw(stamped(storage(), "third"))
    assert health.missing() == {}


def test_a_kind_is_blind_only_while_nothing_of_it_moves() -> None:
    clock, found = FakeClock(), Dependencies()
    health = Health(clock, found.version)
    sight = Sight(clock, health)
    wait = int(PATIENCE_S * 1e6)
    health.read(FAST, ("u1", 1))
    clock.advance_us(wait - 1)
    assert sight.blind() == []
    clock.advance_us(1)
    assert sight.blind() == [STORAGE]
    # Another object of the kind was shown: this one is in a queue.
    sight.showed(STORAGE)
    assert sight.blind() == []
    clock.advance_us(wait)
    with sight.handling(STORAGE):
        assert sight.blind() == [], "the event may wait for the handler"
    assert sight.blind() == []
    clock.advance_us(wait)
    assert sight.blind() == [STORAGE]
    # A run that has only just begun has had no time to see anything.
    assert Sight(clock, health).blind() == []
    found.saw(stamped(storage(), "u1"))
    assert sight.blind() == []


def test_a_kind_that_is_not_served_has_no_objects_and_is_not_waited_for() -> None:
    class Gone(FakeKube):
        async def list(self, kind: str, namespace: str, labels: Mapping[str, str] | None = None) -> list[Json]:
            raise NotFound("the Kubernetes API server answered with status 404")

    async def story() -> None:
        house = House({})
        begun: list[None] = []
        health = Health(house.clock, lambda _ref: None)
        runtime = Runtime(replace(house.world, kube=Gone(house.clock)), 60.0, Random(1), Dependencies(), health, on_blind=lambda: begun.append(None))
        health.read(FAST, ("u1", 1))
        house.clock.advance_us(int(PATIENCE_S * 1e6))
        await runtime.sweep()
        assert (health.missing(), begun) == ({}, [])

    asyncio.run(story())


def test_a_kind_that_no_watch_shows_is_found_by_the_sweep_and_only_while_it_has_objects() -> None:
    """The framework can miss a kind whose definition comes late; nothing but the liveness probe can help then."""

    async def story() -> None:
        house, dependencies = House({}), Dependencies()
        health = Health(house.clock, dependencies.version)
        begun: list[None] = []
        runtime = Runtime(house.world, 60.0, Random(1), dependencies, health, on_blind=lambda: begun.append(None))
        chat = house.kube.put(group())
        fast = house.kube.put(storage())
        dependencies.saw({**house.kube.body(chat), "kind": GROUP})
        await runtime.sweep()
        assert begun == []
        house.clock.advance_us(int(MAX_WATCH_LAG_S * 1e6))
        await runtime.sweep()
        assert begun == [None]
        assert not health.alive()
        house.kube.mark_deleted(fast)
        house.kube.release(fast)
        await runtime.sweep()
        assert health.alive()

    asyncio.run(story())


def test_readiness_is_leading_and_working_and_the_page_tells_both() -> None:
    health = Health(FakeClock(), lambda _ref: ("u1", 1))
    assert not health.ready()
    health.leader = health.started = True
    assert health.ready()
    health.passed(FAST, "Ready", 0.1, 1)
    health.passed(CHAT, "error", 0.1, 0)
    page = health.page().decode()
    assert 'kvcm_operator_reconcile_total{kind="Storage",result="Ready"} 1.0' in page
    assert 'kvcm_operator_drift_corrections_total{kind="Storage"} 1.0' in page
    assert 'kvcm_operator_objects{kind="Storage",reason="Ready"} 1.0' in page
    assert "kvcm_operator_leader 1.0" in page
    health.gone(FAST)
    assert "kvcm_operator_objects{" not in health.page().decode()
