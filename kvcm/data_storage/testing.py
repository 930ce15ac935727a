"""A file system with faults, for tests: the real one, with a hook in front of each call.

A hook may raise (an I/O error, a stale handle), change the world first (remove the sentinel between a check and an unlink) or wait. It gets the
name or path that the call is about, or the descriptor as text where there is none.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from kvcm.data_storage.fs import RealFs

Hook = Callable[[str], None]


class FaultyFs(RealFs):
    """`on("unlink", hook)` sets the hook of a call, `on("unlink", None)` takes it off. `calls` lists (call, name) in order."""

    def __init__(self) -> None:
        self._hooks: dict[str, Hook] = {}
        self.calls: list[tuple[str, str]] = []

    def on(self, call: str, hook: Hook | None) -> None:
        if hook is None:
            self._hooks.pop(call, None)
        else:
            self._hooks[call] = hook

    def fail(self, call: str, code: int) -> None:
        """Let every such call end with this errno."""

        def hook(_: str) -> None:
            raise OSError(code, os.strerror(code))

        self.on(call, hook)

    def without_punching(self) -> FaultyFs:
        self.fail("punch", errno.EOPNOTSUPP)
        return self

    def _hit(self, call: str, subject: object) -> None:
        self.calls.append((call, str(subject)))
        hook = self._hooks.get(call)
        if hook is not None:
            hook(str(subject))

    def open_root(self, path: str) -> int:
        self._hit("open_root", path)
        return super().open_root(path)

    def open_dir(self, dir_fd: int, name: str) -> int:
        self._hit("open_dir", name)
        return super().open_dir(dir_fd, name)

    def open_file(self, dir_fd: int, name: str, flags: int) -> int:
        self._hit("open_file", name)
        return super().open_file(dir_fd, name, flags)

    def stat(self, dir_fd: int, name: str) -> os.stat_result:
        self._hit("stat", name)
        return super().stat(dir_fd, name)

    def read(self, fd: int, count: int, offset: int) -> bytes:
        self._hit("read", fd)
        return super().read(fd, count, offset)

    def write(self, fd: int, data: bytes) -> None:
        self._hit("write", fd)
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._hit("sync", fd)
        super().sync(fd)

    def unlink(self, dir_fd: int, name: str) -> None:
        self._hit("unlink", name)
        super().unlink(dir_fd, name)

    def link(self, dir_fd: int, source: str, target: str) -> None:
        self._hit("link", target)
        super().link(dir_fd, source, target)

    def mkdir(self, path: str) -> None:
        self._hit("mkdir", path)
        super().mkdir(path)

    def mkdir_at(self, dir_fd: int, name: str) -> None:
        self._hit("mkdir_at", name)
        super().mkdir_at(dir_fd, name)

    def punch(self, fd: int, offset: int, length: int) -> None:
        self._hit("punch", offset)
        super().punch(fd, offset, length)

    def seek_data(self, fd: int, offset: int) -> int | None:
        self._hit("seek_data", offset)
        return super().seek_data(fd, offset)
