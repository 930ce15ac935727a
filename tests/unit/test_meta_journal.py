"""The journal file: what was acknowledged is read back, whatever breaks in the middle."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcm.meta import journal as module
from kvcm.meta.journal import Journal

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "meta.i1"


def opened(path: Path, *, fsync: bool = True, compact_min_bytes: int = module.COMPACT_MIN_BYTES) -> Journal:
    journal = Journal(path, fsync=fsync, compact_min_bytes=compact_min_bytes)
    journal.open()
    return journal


def reread(path: Path) -> dict[str, object]:
    journal = opened(path)
    try:
        return journal.read()
    finally:
        journal.close()


def failing(code: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def test_the_last_record_of_a_key_counts_and_none_removes(path: Path) -> None:
    journal = opened(path)
    assert journal.append({"1": ["a"], "2": ["b"]}, 1)
    assert journal.append({"1": ["c"], "2": None, "3": None}, 1)
    expected = {"1": ["c"]}
    assert journal.read() == expected
    journal.close()
    assert reread(path) == expected


def test_reading_some_keys_leaves_the_others_out(path: Path) -> None:
    journal = opened(path)
    journal.append({str(key): [key] for key in range(5)}, 1)
    assert journal.read({"1", "4", "9"}) == {"1": [1], "4": [4]}
    journal.close()


def test_the_file_is_for_its_owner_only(path: Path) -> None:
    opened(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_large_change_is_many_lines_and_still_one_change(path: Path) -> None:
    journal = opened(path)
    changes = {str(key): [key] for key in range(1_000)}
    size = path.stat().st_size
    journal.append(changes, 3)
    lines = path.read_bytes()[size:].splitlines()
    assert [len(json.loads(line)["c"]) for line in lines] == [256, 256, 256, 232]
    journal.close()
    assert reread(path) == changes


# -- torn and damaged lines --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b'{"f":1,"c":{"2"', b"x" * 200_000, b"\0" * 10], ids=["half", "long", "zeros"])
def test_a_torn_last_line_is_cut_off_and_does_not_damage_the_next(path: Path, tail: bytes) -> None:
    journal = opened(path)
    journal.append({"1": ["a"]}, 1)
    journal.close()
    with path.open("ab") as file:
        file.write(tail)
    journal = opened(path)
    assert (journal.read(), journal.damaged_lines) == ({"1": ["a"]}, 0)
    journal.append({"2": ["b"]}, 1)
    journal.close()
    assert reread(path) == {"1": ["a"], "2": ["b"]}


def test_a_file_that_is_nothing_but_a_torn_line_starts_empty(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"f":7,"c"')
    journal = opened(path)
    assert (journal.read(), journal.damaged_lines, journal.highest_fence) == ({}, 0, 0)
    journal.close()


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b"7",
        b"{}",
        b'{"f":1}',
        b'{"f":1,"c":[]}',
        b'{"f":"x","c":{}}',
        b'{"f":1e999,"c":{}}',
        b'{"f":null,"c":{}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_line_is_reported_skipped_and_never_rewritten(path: Path, line: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"f":2,"c":{"1":["a"]}}\n' + line + b'\n{"f":2,"c":{"2":["b"]}}\n')
    journal = opened(path)
    assert (journal.read(), journal.damaged_lines, journal.highest_fence) == ({"1": ["a"], "2": ["b"]}, 1, 2)
    assert line in path.read_bytes()
    assert journal.append({"3": ["c"]}, 2)
    journal.close()
    assert reread(path) == {"1": ["a"], "2": ["b"], "3": ["c"]}
    assert line in path.read_bytes()


# -- the fence ---------------------------------------------------------------------------------------------------------------------------------


def test_an_older_leader_is_refused_and_changes_nothing(path: Path) -> None:
    journal = opened(path)
    assert journal.append({"1": ["new"]}, 5)
    assert not journal.append({"1": ["old"]}, 4)
    assert journal.append({"2": ["same"]}, 5)
    assert journal.read() == {"1": ["new"], "2": ["same"]}
    journal.close()


def test_the_fence_survives_reopening_and_compaction_of_an_empty_file(path: Path) -> None:
    journal = opened(path)
    journal.append({"1": ["a"]}, 9)
    journal.append({"1": None}, 9)
    journal.close()
    for _ in range(2):
        journal = opened(path)
        assert (journal.highest_fence, journal.read()) == (9, {})
        assert not journal.append({"1": ["old"]}, 8)
        journal.close()


def test_a_change_whose_caller_has_gone_is_not_made(path: Path) -> None:
    journal = opened(path)
    gone = threading.Event()
    assert journal.append({"1": ["a"]}, 1, gone)
    gone.set()
    assert not journal.append({"1": ["late"]}, 1, gone)
    assert journal.read() == {"1": ["a"]}
    journal.close()


# -- failures in the middle --------------------------------------------------------------------------------------------------------------------


def test_half_a_write_is_taken_back_and_the_next_change_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(path)
    journal.append({"1": ["a"]}, 1)
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[: len(data) // 2]))
        with pytest.raises(OSError, match="only part"):
            journal.append({"2": ["lost"]}, 1)
    assert journal.read() == {"1": ["a"]}
    assert journal.append({"3": ["c"]}, 1)
    journal.close()
    assert reread(path) == {"1": ["a"], "3": ["c"]}


def test_a_change_that_could_not_be_made_durable_is_not_there_afterwards(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(path)
    journal.append({"1": ["a"]}, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(OSError, match="error"):
            journal.append({"1": ["lost"]}, 2)
    assert (journal.read(), journal.highest_fence) == ({"1": ["a"]}, 1)
    journal.close()
    assert reread(path) == {"1": ["a"]}


def test_while_half_a_change_cannot_be_taken_back_nobody_gets_an_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(path)
    journal.append({"1": ["a"]}, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        patch.setattr(os, "ftruncate", failing(errno.EIO))
        for attempt in (lambda: journal.append({"1": ["lost"]}, 1), journal.read, lambda: journal.append({"2": ["lost"]}, 1)):
            with pytest.raises(OSError, match="error"):
                attempt()
    assert journal.read() == {"1": ["a"]}
    assert journal.append({"2": ["b"]}, 1)
    journal.close()
    assert reread(path) == {"1": ["a"], "2": ["b"]}


def test_opening_again_takes_back_what_could_not_be_taken_back_before(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        patch.setattr(os, "ftruncate", failing(errno.EIO))
        with pytest.raises(OSError, match="error"):
            journal.append({"1": ["lost"]}, 1)
    journal.open()
    assert journal.read() == {}
    journal.close()


def test_a_closed_journal_takes_nothing(path: Path) -> None:
    journal = opened(path)
    journal.close()
    journal.close()
    with pytest.raises(OSError, match="descriptor"):
        journal.append({"1": ["a"]}, 1)
    assert reread(path) == {}


def test_opening_twice_leaks_no_descriptor(path: Path) -> None:
    journal = opened(path)
    before = len(os.listdir("/proc/self/fd"))
    journal.open()
    assert len(os.listdir("/proc/self/fd")) == before
    journal.close()


# -- fsync -------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fsync", "per_change"), [(True, 1), (False, 0)])
def test_every_change_is_forced_to_disk_unless_told_otherwise(path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool, per_change: int) -> None:
    journal = opened(path, fsync=fsync)
    forced: list[int] = []
    monkeypatch.setattr(os, "fsync", forced.append)
    journal.append({"1": ["a"]}, 1)
    journal.append({"2": ["b"]}, 1)
    assert len(forced) == 2 * per_change
    journal.sync()
    assert len(forced) == 2 * per_change + 1
    journal.close()


# -- compaction --------------------------------------------------------------------------------------------------------------------------------


def rewrite_often(path: Path, journal: Journal, rounds: int = 50) -> int:
    biggest = 0
    for number in range(rounds):
        journal.append({"1": ["x" * 100, number], str(number % 3): [number]}, 2)
        biggest = max(biggest, path.stat().st_size)
    return biggest


def test_the_file_stays_bounded_by_what_lives(path: Path) -> None:
    journal = opened(path, compact_min_bytes=1_000)
    assert rewrite_often(path, journal) < 2_000
    expected = {"1": [49], "2": [47], "0": [48]}
    assert journal.read() == expected
    journal.close()
    assert reread(path) == expected
    assert path.read_bytes().count(b"\n") == 1  # opening leaves one line


def test_compaction_of_many_keys_keeps_all_of_them(path: Path) -> None:
    journal = opened(path)
    changes = {str(key): [key] for key in range(700)}
    journal.append(changes, 4)
    journal.close()
    assert reread(path) == changes
    assert reread(path) == changes


@pytest.mark.parametrize("crash_in", ["open", "write", "fsync", "replace"])
def test_a_crash_before_the_rename_leaves_the_old_file_whole(path: Path, monkeypatch: pytest.MonkeyPatch, crash_in: str) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object, **__: object) -> int:
        raise Crash

    journal = opened(path)
    journal.append({"1": ["a"]}, 3)
    journal.append({"1": ["b"]}, 3)
    journal.close()
    content = path.read_bytes()
    with monkeypatch.context() as patch:
        if crash_in == "open":
            real = os.open
            patch.setattr(os, "open", lambda name, *rest: crash() if str(name).endswith(module.TEMPORARY) else real(name, *rest))
        elif crash_in == "write":
            patch.setattr(module, "_lines_of", crash)
        else:
            patch.setattr(os, crash_in, crash)
        broken = Journal(path)
        with pytest.raises(Crash):
            broken.open()
        broken.close()
    assert path.read_bytes() == content
    assert reread(path) == {"1": ["b"]}
    assert os.listdir(path.parent) == [path.name]


def test_a_left_over_temporary_file_is_not_believed(path: Path) -> None:
    journal = opened(path)
    journal.append({"1": ["a"]}, 3)
    journal.close()
    path.with_name(path.name + module.TEMPORARY).write_bytes(b'{"f":99,"c":{"1":["wrong"]}}\n{"f":99,"c":{"7":')
    assert reread(path) == {"1": ["a"]}
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_without_room_for_a_compaction_the_old_file_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    journal = opened(path, fsync=False, compact_min_bytes=300)
    expected = {"1": ["x" * 100, 9], "2": [8], "0": [9]}
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        assert rewrite_often(path, journal, 10) > 300
        assert journal.read() == expected
    assert os.listdir(path.parent) == [path.name]
    journal.close()
    assert reread(path) == expected


def test_after_the_rename_nothing_is_written_to_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(path, fsync=False, compact_min_bytes=1)
    journal.append({"1": ["a" * 300]}, 1)
    real = os.open

    def no_folder(name: str | Path, flags: int, mode: int = 0o777) -> int:
        if name == path.parent:
            raise OSError(errno.EIO, "the folder cannot be opened")
        return real(name, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_folder)
        for _ in range(2):  # the rename is not known to be durable, so nothing is acknowledged
            with pytest.raises(OSError, match="folder"):
                journal.append({"2": ["b"]}, 1)
    assert journal.append({"3": ["c"]}, 1)
    assert journal.read() == {"1": ["a" * 300], "3": ["c"]}
    journal.close()
    assert reread(path) == {"1": ["a" * 300], "3": ["c"]}
