"""Files that are read again: every way in which a file changes, and what happens when the new content is of no use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvcm.config.errors import SettingsError
from kvcm.service.credentials import MAX_FILE_BYTES, Contents, CredentialFiles

pytestmark = pytest.mark.unit


class Desk:
    def __init__(self) -> None:
        self.files = CredentialFiles(1000)
        self.taken: list[Contents] = []

    def take(self, contents: Contents) -> None:
        if b"bad" in contents[0]:
            raise SettingsError("It is bad.")
        if b"odd" in contents[0]:
            raise RuntimeError("canary")
        self.taken.append(contents)


def run(story: Callable[[Desk], Awaitable[None]]) -> None:
    async def whole() -> None:
        desk = Desk()
        try:
            await story(desk)
        finally:
            await desk.files.stop()

    asyncio.run(whole())


def test_a_swapped_link_and_an_overwritten_file_are_both_seen(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        # As Kubernetes mounts a Secret: files link into `..data`, which links into a folder that is replaced as a whole.
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "a").write_text(f"{name} a")
            (tmp_path / name / "b").write_text(f"{name} b")
        (tmp_path / "..data").symlink_to("first")
        for name in ("a", "b"):
            (tmp_path / name).symlink_to(f"..data/{name}")
        await desk.files.add("pair", [str(tmp_path / "a"), str(tmp_path / "b")], desk.take)
        await desk.files.check()
        assert desk.taken == [(b"first a", b"first b")]
        (tmp_path / "..new").symlink_to("second")
        (tmp_path / "..new").rename(tmp_path / "..data")
        await desk.files.check()
        assert desk.taken[1:] == [(b"second a", b"second b")]
        before = (tmp_path / "second" / "b").stat()
        (tmp_path / "second" / "b").write_text("SECOND b")
        os.utime(tmp_path / "second" / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
        await desk.files.check()
        assert desk.taken[2:] == [(b"second a", b"SECOND b")]

    run(story)


@pytest.mark.parametrize("damage", ["bad", "odd", "gone", "folder", "long"])
def test_the_old_content_stays_until_the_new_one_is_good(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"

    async def story(desk: Desk) -> None:
        path.write_text("good")
        await desk.files.add("token", [str(path)], desk.take)
        path.unlink()
        match damage:
            case "folder":
                path.mkdir()
            case "long":
                path.write_bytes(b"x" * (MAX_FILE_BYTES + 1))
            case "bad" | "odd":
                path.write_text(damage)
        await desk.files.check()
        await desk.files.check()
        assert desk.taken == [(b"good",)]
        assert desk.files.failing == ["token"]
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert 1 <= len(errors) <= 2
        assert "canary" not in caplog.text
        if path.is_dir():
            path.rmdir()
        path.write_text("better")
        await desk.files.check()
        assert desk.taken == [(b"good",), (b"better",)]
        assert desk.files.failing == []

    run(story)


@pytest.mark.parametrize("kind", ["gone", "pipe", "folder"])
def test_what_cannot_be_read_at_the_start_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "token"

    async def story(desk: Desk) -> None:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        await desk.files.add("token", [str(path)], desk.take)

    if kind == "pipe":
        run(story)  # an empty pipe has an empty content, and nobody waited for a writer
    else:
        with pytest.raises(SettingsError, match="cannot be read"):
            run(story)


def test_the_watch_looks_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "token"

    async def story(desk: Desk) -> None:
        desk.files = CredentialFiles(1)
        taken = asyncio.Event()
        rounds: list[int] = []
        path.write_text("one")

        def take(contents: Contents) -> None:
            desk.take(contents)
            if contents == (b"two",):
                taken.set()

        await desk.files.add("token", [str(path)], take)
        desk.files.each_round(lambda: rounds.append(1))
        desk.files.start()
        path.write_text("two")
        async with asyncio.timeout(10):
            await taken.wait()
        await desk.files.stop()
        assert rounds

    run(story)
