"""A manager with registry and block metadata in a real Redis: crashes at each point of a block's life, stores that go away, passwords (behaviour 9.9, 10.3)."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_blocks import SIZE, Engine, path_of, wait_until
from kvcm.service.testing_wire import HttpWire, code

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

PASSWORD = "s3cret-word"


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer("--requirepass", PASSWORD, durable=True) as server:
        server.call("AUTH", PASSWORD)
        yield server


class House:
    """A manager process and an engine whose group keeps its blocks in Redis."""

    def __init__(self, redis: RedisServer, folder: Path, kind: str = "redis", options: str = "", *, registry: bool = True) -> None:
        self.redis = redis
        self.name = folder.name
        uri = f"redis://{PASSWORD}@127.0.0.1:{redis.port}/?cluster_name={self.name}"
        self.meta_uri = f"{uri}{options}"
        self.kind = kind
        self.manager = ManagerProcess(config=f"kvcm.registry_storage.uri={uri}\n" if registry else "")
        self.folder = folder

    def __enter__(self) -> House:
        self.manager.__enter__()
        self.set_up()
        return self

    def set_up(self) -> None:
        self.engine = self._engine()
        indexer = {"max_key_count": 1000, "meta_storage_backend_config": {"storage_type": self.kind, "storage_uri": self.meta_uri}}
        self.engine.set_up(self.name, "nfs", indexer=indexer)

    def __exit__(self, *why: object) -> None:
        self.manager.__exit__(None, None, None)

    def restart(self, *, kill: bool = True, meanwhile: Callable[[], None] = lambda: None) -> None:
        if kill:
            self.manager.kill()
        else:
            self.manager.stop()
        meanwhile()
        self.manager.start()
        self.engine = self._engine()
        wait_until(self._serves, "the manager serves")

    def key(self, block: int) -> str:
        return f"kvcache:instance_{self.name}:cache_{block}"

    def stored(self) -> dict[int, list[dict[str, object]]]:
        """What Redis holds: block -> its locations."""
        found = {}
        for name in self.redis.keys(self.key(0)[:-1] + "*"):
            fields = self.redis.fields(name)
            found[int(name.rpartition("_")[2])] = [json.loads(text) for field, text in fields.items() if field.startswith("L#")]
        return found

    def set_status(self, block: int, status: int) -> None:
        """As if a manager had ended right after storing it."""
        for field, text in self.redis.fields(self.key(block)).items():
            if field.startswith("L#"):
                self.redis.call("HSET", self.key(block), field, json.dumps(json.loads(text) | {"status": status}, separators=(",", ":")))

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.manager.admin_http_url}/metrics", timeout=20) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return sum(sample.value for family in families for sample in family.samples if sample.name in (f"kvcm_{name}", f"kvcm_{name}_total"))

    def health(self) -> str:
        return json.dumps(HttpWire(self.manager.admin_http_url).call("CheckHealth", {"trace_id": "t"}))

    def check_counts(self) -> None:
        """Keys and bytes that the manager reports equal a recount of what Redis holds."""
        stored = self.stored()
        assert self.metric("meta_indexer_total_key_count") == len(stored)
        assert self.metric("meta_indexer_total_data_size") == SIZE * sum(map(len, stored.values()))

    def _engine(self) -> Engine:
        engine = Engine(HttpWire(self.manager.http_url), HttpWire(self.manager.admin_http_url), self.folder)
        engine.name = self.name
        return engine

    def _serves(self) -> bool:
        return code(self.engine.meta.call("GetInstanceInfo", {"trace_id": "t", "instance_id": self.name})) == "OK"


def test_blocks_survive_a_kill_with_their_places_and_counts(redis: RedisServer, tmp_path: Path) -> None:
    with House(redis, tmp_path) as house:
        keys = list(range(40))
        house.engine.put(keys)
        before = house.engine.prefix_locations(keys)
        assert len(before) == 40
        house.restart()
        assert house.engine.prefix_locations(keys) == before
        house.check_counts()
        assert house.engine.start(keys).keys == []
        assert house.metric("meta_redis_loaded_counter") == 40
        assert PASSWORD not in house.manager.log


def test_each_point_at_which_a_manager_may_crash_is_repaired(redis: RedisServer, tmp_path: Path) -> None:
    with House(redis, tmp_path) as house:
        engine = house.engine
        kept = engine.put([1])
        doomed = engine.put([2, 3])
        engine.start([4, 5])  # after "add WRITING": nobody can finish it any more
        places = [path_of(uri) for block in doomed.places for uri in block.values()]

        def crash_points() -> None:
            house.set_status(2, 4)  # after "CAS DELETING", before the physical delete
            house.set_status(3, 4)  # after the physical delete, before the record goes
            places[1].unlink()

        house.restart(meanwhile=crash_points)
        wait_until(lambda: set(house.stored()) == {1}, "everything unfinished is gone")
        assert not places[0].exists()
        assert house.engine.prefix([1]) == kept.places
        assert house.engine.prefix([2]) == []
        house.check_counts()
        assert house.engine.put([2, 3, 4, 5]).keys == [2, 3, 4, 5]
        house.check_counts()


def test_a_removed_block_is_gone_from_redis_and_not_brought_back(redis: RedisServer, tmp_path: Path) -> None:
    with House(redis, tmp_path) as house:
        house.engine.put([1, 2])
        house.engine.ok(house.engine.meta, "RemoveCache", instance_id=house.name, block_keys=[1])
        house.engine.wait_gone([1])
        assert set(house.stored()) == {2}
        house.restart()
        assert house.engine.prefix([1]) == []
        assert len(house.engine.prefix([2])) == 1


def test_leftovers_of_a_removed_instance_go_after_a_crash(redis: RedisServer, tmp_path: Path) -> None:
    with House(redis, tmp_path) as house:
        house.engine.put([1, 2])
        house.set_status(1, 4)
        house.set_status(2, 4)

        def forget() -> None:
            prefix = f"kvcache_registry:{house.name}:"
            house.redis.call("HDEL", f"{prefix}instance", house.name)
            house.redis.call("DEL", f"{prefix}{house.name}")

        house.manager.kill()
        forget()
        house.manager.start()
        wait_until(lambda: not house.stored(), "its blocks are gone")


def set_fence(house: House, fence: int) -> None:
    house.redis.call("SET", f"kvcache:instance_{house.name}:__kvcm_fence__", f"{fence:020d}.0123456789abcdef")


def test_a_leader_whose_blocks_another_has_taken_over_steps_down(redis: RedisServer, tmp_path: Path) -> None:
    with House(redis, tmp_path) as house:
        house.engine.put([1])
        set_fence(house, 1 << 62)
        request = {"trace_id": "t", "instance_id": house.name, "block_keys": [2], "write_timeout_seconds": 9}
        assert code(house.engine.meta.call("StartWriteCache", request)) != "OK"
        wait_until(lambda: "stepping down" in house.manager.log, "it steps down")
        assert set(house.stored()) == {1}


def test_a_single_manager_that_remembers_nothing_finds_its_blocks_again(redis: RedisServer, tmp_path: Path) -> None:
    with House(redis, tmp_path, registry=False) as house:
        house.engine.put([1, 2])
        house.manager.kill()
        set_fence(house, 7)  # of terms that only Redis remembers
        house.manager.start()
        wait_until(lambda: '"is_leader":true' in house.health().replace(" ", ""), "it leads")
        house.set_up()
        assert len(house.engine.prefix([1, 2])) == 2
        house.engine.put([3])


def test_redis_down_fails_writes_not_reads_and_comes_back_by_itself(tmp_path: Path) -> None:
    with RedisServer("--requirepass", PASSWORD, durable=True) as redis:
        redis_call = redis.call
        redis_call("AUTH", PASSWORD)
        with House(redis, tmp_path, options="&timeout_ms=300") as house:
            house.engine.put([1, 2, 3])
            redis.kill()
            assert len(house.engine.prefix([1, 2, 3])) == 3
            reply = house.engine.meta.call("StartWriteCache", {"trace_id": "t", "instance_id": house.name, "block_keys": [9], "write_timeout_seconds": 9})
            assert code(reply) != "OK"
            assert PASSWORD not in json.dumps(reply)
            for _ in range(2):
                assert code(house.engine.meta.call("StartWriteCache", {"trace_id": "t", "instance_id": house.name, "block_keys": [9]})) != "OK"
            redis.start()
            redis_call("AUTH", PASSWORD)
            wait_until(
                lambda: code(house.engine.meta.call("StartWriteCache", {"trace_id": "t", "instance_id": house.name, "block_keys": [9]})) == "OK",
                "writes work again",
            )
            assert [house.manager.log.count(what) for what in ("redis_away", "redis_back")] == [1, 1], "said once each, however many calls failed"
            house.check_counts()


def test_written_behind_nothing_is_lost_by_a_stop(redis: RedisServer, tmp_path: Path) -> None:
    with House(redis, tmp_path, "async_redis", "&async_wait_us=10000000") as house:
        keys = list(range(30))
        house.engine.put(keys)
        assert house.metric("meta_redis_behind_blocks") == 30
        before = house.engine.prefix_locations(keys)
        house.restart(kill=False)
        assert house.engine.prefix_locations(keys) == before
        # Physical deletion waits until the marks are stored.
        house.engine.ok(house.engine.meta, "RemoveCache", instance_id=house.name, block_keys=[0])
        wait_until(lambda: house.engine.states([0]) == [["CLS_NOT_FOUND"]], "the block is gone")
        house.restart(kill=False)
        assert sorted(house.stored()) == keys[1:]
        house.check_counts()


def test_written_behind_what_a_kill_loses_is_what_waited(redis: RedisServer, tmp_path: Path) -> None:
    with House(redis, tmp_path, "async_redis", "&async_wait_us=1000") as house:
        house.engine.put(list(range(10)))
        wait_until(lambda: house.metric("meta_redis_behind_blocks") == 0, "everything is stored")
        house.restart()
        assert len(house.engine.prefix(list(range(10)))) == 10
        house.check_counts()
