"""The registry file: upstream's layout, damaged content, the fence, atomic replacement, deadlines."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvcm.common.errors import InvalidArgument, OutcomeUnknown, StorageError, Unsupported
from kvcm.common.failpoints import FailPoints
from kvcm.config.errors import FencedOut, StoreDamaged
from kvcm.config.store import Change, RegistrySnapshot, open_store
from kvcm.config.store_etcd import EtcdStore
from kvcm.config.store_local import LocalStore
from kvcm.config.store_memory import MemoryStore
from kvcm.config.store_redis import RedisStore

pytestmark = pytest.mark.unit

GROUP = Change("instance_group", "g", {"name": "g", "n": 1})
ONE = Change("instance", "one", {"instance_id": "one"})
TWO = Change("instance", "two", {"instance_id": "two"})


def write(path: Path, changes: Sequence[Change], fence: int = 1) -> None:
    async def run() -> None:
        store = LocalStore(str(path))
        await store.open()
        await store.apply(changes, fence)
        await store.close()

    asyncio.run(run())


def read(path: Path) -> RegistrySnapshot:
    async def run() -> RegistrySnapshot:
        store = LocalStore(str(path))
        try:
            return await store.load()
        finally:
            await store.close()

    return asyncio.run(run())


def content(path: Path) -> dict[str, str]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def test_the_layout_is_that_of_upstream(tmp_path: Path) -> None:
    path = tmp_path / "new" / "registry.json"
    write(path, [GROUP, ONE])
    raw = content(path)
    # Every value, also our own fence, is a string holding an object of strings: upstream can read the file.
    tables = {key: json.loads(value) for key, value in raw.items()}
    assert all(isinstance(value, str) for table in tables.values() for value in table.values())
    assert tables["instance"] == {"one": "one"}
    assert json.loads(tables["one"]["one"]) == {"instance_id": "one"}
    assert json.loads(tables["instance_group"]["g"]) == {"name": "g", "n": 1}
    assert tables["__kvcm_fence__"] == {"epoch": "1"}
    assert set(raw) == {"instance", "one", "instance_group", "__kvcm_fence__"}


def test_removing_an_instance_removes_its_key_and_its_listing(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    write(path, [ONE, TWO])
    write(path, [Change("instance", "one", None), Change("instance", "never", None)])
    assert "one" not in content(path)
    assert set(read(path).tables["instance"]) == {"two"}


def test_a_damaged_instance_is_kept_untouched_through_rewrites_and_works_again_when_restored(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    write(path, [ONE, GROUP])
    good = content(path)
    path.write_text(json.dumps(good | {"one": "THIS IS DAMAGED \udcff"}))
    snapshot = read(path)
    assert [(item.table, item.id) for item in snapshot.quarantined] == [("instance", "one")]
    assert "DAMAGED" not in snapshot.quarantined[0].reason
    write(path, [TWO])
    raw = content(path)
    assert raw["one"].startswith("THIS IS DAMAGED")
    path.write_text(json.dumps(raw | {"one": good["one"]}))
    assert set(read(path).tables["instance"]) == {"one", "two"}
    assert read(path).quarantined == ()


def test_bytes_that_are_no_text_survive_inside_a_damaged_value(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    path.write_bytes(b'{"one": "\xff\xfe", "instance": "{\\"one\\":\\"one\\"}"}')
    write(path, [TWO])
    assert b"\xff\xfe" in path.read_bytes()


def test_one_bad_entry_of_a_table_does_not_hide_the_others_and_survives(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    path.write_text(json.dumps({"instance_group": json.dumps({"good": '{"name":"good"}', "bad": "{{", "worse": 5}), "account": 7}))
    snapshot = read(path)
    assert snapshot.get("instance_group", "good") == {"name": "good"}
    assert {(item.table, item.id) for item in snapshot.quarantined} == {
        ("instance_group", "bad"),
        ("instance_group", "worse"),
        ("account", ""),
    }
    write(path, [GROUP])
    raw = json.loads(path.read_text())
    assert raw["account"] == 7
    assert json.loads(raw["instance_group"])["bad"] == "{{"
    assert json.loads(raw["instance_group"])["worse"] == 5
    write(path, [Change("instance_group", "bad", {"name": "bad"})])
    assert read(path).get("instance_group", "bad") == {"name": "bad"}


def test_a_damaged_table_that_must_be_replaced_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    path.write_text(json.dumps({"instance_group": "lost?"}))
    write(path, [GROUP])
    assert read(path).get("instance_group", "g") == GROUP.record
    assert "lost?" in content(path)["__kvcm_damaged__instance_group"]


def test_a_damaged_list_of_instances_is_rebuilt_from_the_records(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    write(path, [ONE, GROUP])
    path.write_text(json.dumps(content(path) | {"instance": "]"}))
    assert set(read(path).tables["instance"]) == {"one"}
    assert [(item.table, item.id) for item in read(path).quarantined] == [("instance", "")]
    write(path, [TWO])
    assert set(read(path).tables["instance"]) == {"one", "two"}


def test_an_instance_that_is_listed_without_a_record_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    path.write_text(json.dumps({"instance": '{"ghost":"ghost"}'}))
    assert [(item.id, item.reason) for item in read(path).quarantined] == [("ghost", "its record is missing")]


@pytest.mark.parametrize("text", ["", '{"instance": "{', "[]", "null", "7", "[" * 100_000])
def test_a_file_that_is_no_json_object_fails_with_a_sentence_and_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "registry.json"
    path.write_text(text)

    async def run() -> None:
        store = LocalStore(str(path))
        with pytest.raises(StoreDamaged, match="not a JSON object"):
            await store.open()
        with pytest.raises(StoreDamaged):
            await store.apply([ONE], 1)
        await store.close()

    asyncio.run(run())
    assert path.read_text() == text


def test_a_file_that_was_cut_while_another_process_wrote_it_never_comes_from_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "registry.json"
    write(path, [ONE])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    async def run() -> None:
        store = LocalStore(str(path))
        with pytest.raises(StorageError, match="No space left") as caught:
            await store.apply([TWO], 1)
        assert not isinstance(caught.value, OutcomeUnknown)
        await store.close()

    asyncio.run(run())
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir() if item.name.endswith(".tmp")] == []


def test_a_folder_that_cannot_be_synced_is_an_unknown_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "registry.json"
    real, calls = os.fsync, []

    def second_fails(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", second_fails)

    async def run() -> None:
        store = LocalStore(str(path))
        with pytest.raises(OutcomeUnknown):
            await store.apply([ONE], 1)
        assert (await store.load()).get("instance", "one") == ONE.record
        await store.close()

    asyncio.run(run())


def test_the_fence_survives_in_the_file_and_refuses_an_older_leader(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"
    write(path, [], fence=7)
    assert read(path).fence == 7

    async def run() -> None:
        store = LocalStore(str(path))
        with pytest.raises(FencedOut) as caught:
            await store.apply([ONE], 6)
        assert caught.value.fence == 7
        await store.apply([ONE], 7)
        await store.apply([TWO], 8)
        await store.close()

    asyncio.run(run())
    assert read(path).fence == 8


def test_concurrent_changes_of_two_stores_on_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "registry.json"

    async def run() -> None:
        stores = [LocalStore(str(path)), LocalStore(str(path))]
        await asyncio.gather(
            *(stores[n % 2].apply([Change("instance_group", f"g{n}", {"name": f"g{n}"})], 1) for n in range(10)),
        )
        for store in stores:
            await store.close()

    asyncio.run(run())
    assert set(read(path).tables["instance_group"]) == {f"g{n}" for n in range(10)}


def test_a_process_that_does_not_go_on_with_the_lock_in_its_hand_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "registry.json"
    monkeypatch.setattr("kvcm.common.file_turn._PASS_OVER_S", 0.5)
    with open(f"{path}.lock", "w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)

        async def run() -> None:
            store = LocalStore(str(path), deadline_s=0.6)
            with pytest.raises(StorageError, match=rf"locked by process {os.getpid()}") as caught:
                await store.apply([ONE], 1)
            assert not isinstance(caught.value, OutcomeUnknown)
            assert not path.exists()
            for number in range(3):
                await store.apply([Change("instance_group", f"g{number}", {"name": f"g{number}"})], 1)
            await store.close()

        asyncio.run(run())
    assert set(read(path).tables["instance_group"]) == {"g0", "g1", "g2"}
    assert [record.getMessage() for record in caplog.records if "passed_over" in record.getMessage()] == [
        f"turn_passed_over lock=registry.json.lock process={os.getpid()}: it keeps the lock and does not go on"
    ]


def test_nobody_else_reads_or_locks_what_is_beside_the_file_and_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "registry.json"

    async def run() -> None:
        store = LocalStore(str(path))
        await store.apply([ONE], 1)
        assert {entry.name: entry.stat().st_mode & 0o077 for entry in tmp_path.iterdir()} == dict.fromkeys(
            ("registry.json", "registry.json.lock", "registry.json.turn"), 0
        )
        before = path.read_bytes()

        def full(fd: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            await store.apply([Change("instance_group", "g", {"name": "g"})], 1)
        assert path.read_bytes() == before
        assert not list((tmp_path / "registry.json.turn").iterdir())
        await store.close()

    asyncio.run(run())


def test_what_killed_processes_left_beside_the_file_is_swept_when_it_is_opened(tmp_path: Path) -> None:
    left = tmp_path / "registry.json.turn.1-0"
    left.mkdir()
    os.utime(left, (0, 0))

    async def run() -> None:
        store = LocalStore(str(tmp_path / "registry.json"))
        await store.open()
        await store.close()

    asyncio.run(run())
    assert not left.exists()


def test_a_leader_that_is_stopped_in_the_middle_of_a_write_writes_nothing_when_a_newer_one_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "registry.json"
    monkeypatch.setattr("kvcm.common.file_turn._is_stopped", lambda pid: True)
    newer = LocalStore(str(path), deadline_s=5)

    class Stops(FailPoints):
        """Where the older leader has prepared its write, the newer one does all of its own."""

        def passing(self, name: str) -> None:
            if name == "registry.replace.before":
                asyncio.run(newer.apply([Change("instance_group", "new", {"name": "new"})], 2))

    async def run() -> None:
        older = LocalStore(str(path), deadline_s=20, points=Stops())
        with pytest.raises(StorageError, match="did not run for a while") as caught:
            await older.apply([ONE], 1)
        assert not isinstance(caught.value, OutcomeUnknown)
        await older.close()
        await newer.close()

    asyncio.run(run())
    found = read(path)
    assert set(found.tables["instance_group"]) == {"new"}
    assert found.fence == 2


def test_a_hanging_disk_is_an_unknown_outcome_and_a_later_read_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "registry.json"
    release, real = threading.Event(), os.replace

    def slow(source: str, target: str, src_dir_fd: int, dst_dir_fd: int) -> None:
        release.wait(10)
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "replace", slow)

    async def run() -> RegistrySnapshot:
        store = LocalStore(str(path), deadline_s=0.05)
        with pytest.raises(OutcomeUnknown):
            await store.apply([ONE], 1)
        with pytest.raises(StorageError, match="in time"):
            await store.load()
        release.set()
        store._deadline_s = 10
        try:
            return await store.load()
        finally:
            await store.close()

    assert asyncio.run(run()).get("instance", "one") == ONE.record


def test_what_waits_for_a_hanging_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(LocalStore, "_read", lambda self: release.wait(10))

    async def run() -> None:
        store = LocalStore(str(tmp_path / "r.json"), deadline_s=0.02)
        texts = []
        for _ in range(12):
            with pytest.raises(StorageError) as caught:
                await store.load()
            texts.append(caught.value.message)
        assert any("earlier requests" in text for text in texts)
        release.set()
        await store.close()
        with pytest.raises(StorageError, match="closed"):
            await store.load()

    asyncio.run(run())


def test_a_path_that_is_a_folder_and_a_missing_path_are_clear_errors(tmp_path: Path) -> None:
    async def run() -> None:
        store = LocalStore(str(tmp_path))
        with pytest.raises(StorageError, match="cannot be used"):
            await store.open()
        await store.close()

    asyncio.run(run())
    with pytest.raises(InvalidArgument):
        LocalStore("")


def test_the_uri_chooses_the_store(tmp_path: Path) -> None:
    assert isinstance(open_store(""), MemoryStore)
    local = open_store(f"local://{tmp_path}/r.json")
    assert isinstance(local, LocalStore)
    asyncio.run(local.close())
    assert isinstance(open_store("redis://h:1/?cluster_name=c"), RedisStore)
    assert isinstance(open_store("etcd://h:2379/x"), EtcdStore)
    with pytest.raises(Unsupported, match="not part of this version"):
        open_store("raft://h")
    for uri in ("just/a/path", "ftp://x", "etcd://h"):
        with pytest.raises(InvalidArgument):
            open_store(uri)


def test_the_memory_store_shares_nothing_with_its_caller_and_is_fenced() -> None:
    async def run() -> None:
        store = MemoryStore()
        record = {"name": "g", "list": [1]}
        await store.apply([Change("instance_group", "g", record)], 3)
        record["list"] = [2]
        found = (await store.load()).get("instance_group", "g")
        assert found == {"name": "g", "list": [1]}
        with pytest.raises(FencedOut):
            await store.apply([Change("instance_group", "g", None)], 2)
        assert (await store.load()).get("instance_group", "g") is not None

    asyncio.run(run())
