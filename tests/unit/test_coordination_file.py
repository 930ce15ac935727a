"""The folder of the `file://` coordinator on a fake clock: reboots, other machines, damaged files, and what killed processes leave."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.common.file_turn import TurnLost
from kvcm.coordination import file_lease
from kvcm.coordination.file import FileCoordinator, open_file
from kvcm.coordination.file_lease import LeaseFolder, this_clock
from kvcm.coordination.port import MAX_NODES, NODE_INFO_TTL_MS, Leader, NodeInfo

pytestmark = pytest.mark.unit

LEASE = 1_000_000
TTL = NODE_INFO_TTL_MS * 1000


class Machine:
    """One boot of one machine. Its monotonic clock says nothing about another's."""

    def __init__(self, folder: Path, boot: str, uptime_us: int) -> None:
        self._folder = folder
        self.boot = boot
        self.clock = FakeClock(monotonic_us=uptime_us)

    def node(self, floor: int = 0) -> LeaseFolder:
        return LeaseFolder(self._folder, self.clock, floor, self.boot)


def test_a_lease_from_before_a_reboot_is_waited_for_once_and_epochs_go_on(tmp_path: Path) -> None:
    before = Machine(tmp_path, "boot-1", 10**12)
    assert before.node().campaign("a", LEASE) == 1
    # The new clock is far behind the old one: comparing the two would make the lease last for days.
    after = Machine(tmp_path, "boot-2", 1000)
    node = after.node()
    assert node.campaign("b", LEASE) is None
    assert node.observe() == Leader("a", 1)
    after.clock.advance_us(LEASE - 1)
    assert node.campaign("b", LEASE) is None
    after.clock.advance_us(1)
    assert node.campaign("b", LEASE) == 2


def test_the_same_node_wins_at_once_after_a_reboot(tmp_path: Path) -> None:
    assert Machine(tmp_path, "boot-1", 10**12).node().campaign("a", LEASE) == 1
    assert Machine(tmp_path, "boot-2", 1).node().campaign("a", LEASE) == 2


@pytest.mark.parametrize("ahead_us", [-(10**11), 10**11])
def test_two_machines_over_a_shared_folder_exclude_each_other_whatever_their_clocks_say(tmp_path: Path, ahead_us: int) -> None:
    here, there = Machine(tmp_path, "here", 10**12), Machine(tmp_path, "there", 10**12 + ahead_us)
    leader, other = here.node(), there.node()
    assert leader.campaign("a", LEASE) == 1
    for _ in range(20):
        assert other.campaign("b", LEASE) is None
        for machine in (here, there):
            machine.clock.advance_us(LEASE // 2)
        assert leader.keep_alive("a", 1, LEASE)
    # The last renewal is seen once, and then nothing changes any more.
    assert other.campaign("b", LEASE) is None
    there.clock.advance_us(LEASE)
    assert other.campaign("b", LEASE) == 2
    assert not leader.keep_alive("a", 1, LEASE)


def test_where_the_system_does_not_name_its_clock_nobody_trusts_anothers_times(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "", 10**9)
    assert machine.node().campaign("a", LEASE) == 1
    other = machine.node()
    machine.clock.advance_us(LEASE)
    assert other.campaign("b", LEASE) is None
    machine.clock.advance_us(LEASE)
    assert other.campaign("b", LEASE) == 2


def test_a_wall_clock_that_steps_is_not_looked_at(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "boot", 10**9)
    node, other = machine.node(), machine.node()
    assert node.campaign("a", LEASE) == 1
    for step in (10**13, -(10**14)):
        machine.clock.step_wall(step)
        assert other.campaign("b", LEASE) is None
        assert node.keep_alive("a", 1, LEASE)
    machine.clock.advance_us(LEASE)
    assert other.campaign("b", LEASE) == 2


def _torn(folder: Path) -> None:
    (folder / "kvcm_leader.lease").write_bytes(b"\0" * 40)


def _nested(folder: Path) -> None:
    (folder / "kvcm_leader.lease").write_bytes(b"[" * 100_000)


def _of_other_types(folder: Path) -> None:
    (folder / "kvcm_leader.lease").write_text('{"node_id":1,"epoch":"x","lease_us":true,"since_us":-1,"clock":null}\n', encoding="utf-8")


def _older(folder: Path) -> None:
    """An old write that arrives after a newer term has begun."""
    (folder / "kvcm_leader.epoch").write_text("7\n", encoding="utf-8")


def _future(folder: Path) -> None:
    text = (folder / "kvcm_leader.lease").read_text(encoding="utf-8")
    (folder / "kvcm_leader.lease").write_text(text.replace('"since_us": 1000000000', '"since_us": 9000000000'), encoding="utf-8")


@pytest.mark.parametrize("damage", [_torn, _nested, _of_other_types, _older, _future])
def test_a_record_that_cannot_be_trusted_frees_nothing_before_a_whole_lease_has_passed(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    machine = Machine(tmp_path, "boot", 10**9)
    assert machine.node().campaign("a", LEASE) == 1
    damage(tmp_path)
    other = machine.node()
    assert other.campaign("b", LEASE) is None
    machine.clock.advance_us(LEASE - 1)
    assert other.campaign("b", LEASE) is None
    machine.clock.advance_us(1)
    assert other.campaign("b", LEASE) == (8 if damage is _older else 2)


def test_an_old_file_of_the_epoch_that_somebody_put_back_gives_no_epoch_twice(tmp_path: Path) -> None:
    node = Machine(tmp_path, "boot", 10**9).node()
    for epoch in (1, 2, 3):
        assert node.campaign("a", LEASE) == epoch
    (tmp_path / "kvcm_leader.epoch").write_text("1\n", encoding="utf-8")
    assert Machine(tmp_path, "boot", 10**9).node().campaign("a", LEASE) == 4


def test_a_lost_folder_gives_no_epoch_twice_to_those_who_remember(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "boot", 10**9)
    node = machine.node(floor=41)
    assert node.campaign("a", LEASE) == 42
    for name in ("epoch", "lease"):
        (tmp_path / f"kvcm_leader.{name}").unlink()
    assert not node.keep_alive("a", 42, LEASE)
    assert node.campaign("a", LEASE) == 43


def test_a_damaged_epoch_elects_nobody_and_says_what_to_do(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "boot", 10**9)
    (tmp_path / "kvcm_leader.epoch").write_text("many", encoding="utf-8")
    with pytest.raises(StorageError, match="Stop all managers"):
        machine.node().campaign("a", LEASE)


def test_nodes_are_forgotten_when_they_are_silent_and_their_files_go(tmp_path: Path) -> None:
    here, there = Machine(tmp_path, "here", 10**9), Machine(tmp_path, "there", 5)
    node, other = here.node(), there.node()
    node.put_node("a", "1")
    (tmp_path / "kvcm_node_damaged").write_text("{", encoding="utf-8")
    (tmp_path / "kvcm_node_strange").write_text('{"node_id":1,"info":2,"since_us":3,"clock":4}', encoding="utf-8")
    assert node.list_nodes() == other.list_nodes() == (NodeInfo("a", "1"),)
    for machine in (here, there):
        machine.clock.advance_us(TTL - 1)
    assert node.get_node("a") == other.get_node("a") == "1"
    for machine in (here, there):
        machine.clock.advance_us(1)
    assert node.get_node("a") is None
    assert other.list_nodes() == ()
    node.put_node("b", "2")
    assert len(list(tmp_path.glob("kvcm_node_*"))) == 1


def test_there_is_a_bound_to_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_NODES == 1024
    monkeypatch.setattr(file_lease, "MAX_NODES", 3)
    node = Machine(tmp_path, "boot", 10**9).node()
    for name in "abc":
        node.put_node(name, "")
    node.put_node("c", "again")
    with pytest.raises(StorageError, match="At most 3"):
        node.put_node("d", "")


def test_a_full_disk_neither_ends_a_term_nor_keeps_a_lease_from_being_given_back_and_elects_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, "boot", 10**9)
    node, other = machine.node(), machine.node()
    assert node.campaign("a" * 100, LEASE) == 1

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    for _ in range(5):
        machine.clock.advance_us(LEASE // 2)
        assert node.keep_alive("a" * 100, 1, LEASE)
        assert other.observe() == Leader("a" * 100, 1)
        assert not other.keep_alive("b", 1, LEASE)
    node.resign("a" * 100, 1)
    assert other.observe() is None
    with pytest.raises(StorageError, match="No space left"):
        other.campaign("b", LEASE)
    monkeypatch.undo()
    assert other.campaign("b", LEASE) == 2


def test_a_folder_that_is_replaced_while_a_node_is_stopped_is_not_written_to_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, away = tmp_path / "folder", tmp_path / "away"
    folder.mkdir()
    machine = Machine(folder, "boot", 10**9)
    node, other = machine.node(), machine.node(floor=7)
    assert node.campaign("a", LEASE) == 1
    real = os.replace

    def replace(*args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        folder.rename(away)
        folder.mkdir()
        assert other.campaign("b", LEASE) == 8
        real(*args, **kwargs)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(StorageError, match="replaced by another"):
        node.keep_alive("a", 1, LEASE)
    assert other.keep_alive("b", 8, LEASE)
    assert node.observe() == Leader("b", 8)


def test_what_a_node_removes_after_its_turn_is_over_is_not_called_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, "boot", 10**9)
    node, other = machine.node(), machine.node()
    node.put_node("a", "{}")
    monkeypatch.setattr("kvcm.common.file_turn._is_stopped", lambda pid: True)
    real = os.replace

    def replace(*args: Any, **kwargs: Any) -> None:
        monkeypatch.setattr(os, "replace", real)
        other.put_node("b", "{}")
        real(*args, **kwargs)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(TurnLost):
        node.remove_node("a")
    assert [found.node_id for found in node.list_nodes()] == ["a", "b"]
    node.remove_node("a")
    assert [found.node_id for found in node.list_nodes()] == ["b"]


def test_the_machines_clock_has_a_name() -> None:
    assert this_clock() == this_clock()
    assert "time:[" in this_clock()


def test_what_the_folder_cannot_do_is_said_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    async def run() -> None:
        coordinator = open_file(f"file://{tmp_path}/file/below", FakeClock(), 0)
        with pytest.raises(StorageError, match="cannot be made") as caught:
            await coordinator.campaign("a", 1000)
        assert str(tmp_path) not in caught.value.message
        await coordinator.close()
        gone = FileCoordinator(tmp_path / "gone", FakeClock())
        assert await gone.campaign("a", 1000) == 1
        shutil.rmtree(tmp_path / "gone")
        # Not made again: an unmounted volume must not become an empty folder in which this node leads alone.
        with pytest.raises(StorageError, match="No such file"):
            await gone.keep_alive("a", 1, 1000)
        await gone.close()
        with pytest.raises(StorageError):
            await gone.observe()

    asyncio.run(run())
    for uri in ("file://", "file:///a?b=c", "file:///a\0", "file://here", "file://host/folder"):
        with pytest.raises(InvalidArgument):
            open_file(uri, FakeClock(), 0)
