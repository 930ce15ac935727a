"""Log files: turned over when full, a bounded number of them, and a full disk costs lines, not the manager."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcm.service.log_file import RETRY_S, LogFile
from kvcm.service.logger_config import FileTarget

pytestmark = pytest.mark.unit


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_full_file_is_turned_over_and_only_so_many_are_kept(tmp_path: Path) -> None:
    log = LogFile(FileTarget(str(tmp_path / "log"), max_bytes=20, kept=2))
    for number in range(10):
        log.write(f"line {number:03d}\n")
    log.close()
    assert names(tmp_path) == ["log", "log.1", "log.2"]
    assert (tmp_path / "log").read_text(encoding="utf-8") == "line 008\nline 009\n"
    assert (tmp_path / "log.1").read_text(encoding="utf-8") == "line 006\nline 007\n"
    assert (tmp_path / "log.2").read_text(encoding="utf-8") == "line 004\nline 005\n"


def test_a_line_larger_than_a_file_is_written_whole(tmp_path: Path) -> None:
    log = LogFile(FileTarget(str(tmp_path / "log"), max_bytes=4, kept=1))
    log.write("long line\n")
    log.write("x\n")
    log.close()
    assert (tmp_path / "log.1").read_text(encoding="utf-8") == "long line\n"
    assert (tmp_path / "log").read_text(encoding="utf-8") == "x\n"


def test_an_existing_file_is_continued_and_counts(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n", encoding="utf-8")
    log = LogFile(FileTarget(str(tmp_path / "log"), max_bytes=10, kept=1))
    assert log.open() == ""
    log.write("after\n")
    log.close()
    assert (tmp_path / "log.1").read_text(encoding="utf-8") == "before\n"


def test_what_cannot_be_written_is_counted_and_tried_again_after_a_pause(tmp_path: Path) -> None:
    now = 100.0
    folder = tmp_path / "folder"
    folder.write_text("in the way", encoding="utf-8")
    log = LogFile(FileTarget(str(folder / "log")), lambda: now)
    assert log.open() == "File exists"
    log.write("lost\n")
    folder.unlink()
    log.write("still lost\n")
    now += RETRY_S
    log.write("kept\n")
    log.close()
    assert (folder / "log").read_text(encoding="utf-8") == "level=warn logger=kvcm.log lines_lost=2\nkept\n"


def test_a_full_disk_is_noticed_although_writes_are_buffered(tmp_path: Path) -> None:
    now = 100.0
    said: list[str] = []
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    log = LogFile(FileTarget(str(path)), lambda: now, said.append)
    assert log.open() == ""
    log.write("one\ntwo\n")
    log.flush()
    assert log.lost == 2
    for _ in range(3):
        now += RETRY_S
        log.write("three\n")
        log.flush()
    log.write("four\n")
    assert log.lost == 6
    assert said == [f"log_file_failed path={path} reason='No space left on device': its lines are lost until it can be written again"]
    path.unlink()
    now += RETRY_S
    log.write("kept\n")
    log.flush()
    assert path.read_text(encoding="utf-8") == "level=warn logger=kvcm.log lines_lost=6\nkept\n"
    log.close()
    assert log.lost == 6


def test_a_large_block_that_fails_at_once_is_lost_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    log = LogFile(FileTarget(str(path)), lambda: 0.0)
    log.write("small\n")
    log.write(("x" * 1000 + "\n") * 100)
    log.flush()
    log.close()
    assert log.lost == 101


def test_text_that_is_no_utf8_is_written_escaped(tmp_path: Path) -> None:
    log = LogFile(FileTarget(str(tmp_path / "log")))
    log.write("\ud800\n")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"\\ud800\n"
