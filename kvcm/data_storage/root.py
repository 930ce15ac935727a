"""The root of a file-system storage: claiming it, proving it, and walking below it.

A `RootView` holds the root open while a batch runs: everything in the batch is looked up from that descriptor, so a root that is swapped or
unmounted half-way cannot redirect an unlink. Nothing below the root is reached through a symbolic link. Nothing may be mounted *below* a root:
a second mount that goes away looks like deleted folders, and only the root has a sentinel. Sync code; runs in the I/O pool.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from enum import Enum

from kvcm.data_storage import sentinel as sentinels
from kvcm.data_storage.fs import Fs
from kvcm.data_storage.layout import Layout
from kvcm.data_storage.port import StorageUnavailable
from kvcm.data_storage.sentinel import Sentinel, SentinelUnreadable


class RootState(Enum):
    """What the last look at the sentinel said."""

    VERIFIED = "verified"
    WRONG = "wrong"
    """Reachable, but not our root: missing folder, no sentinel, or somebody else's."""
    UNREACHABLE = "unreachable"
    """The file system did not answer properly: nothing is known."""


@dataclass(slots=True)
class Claim:
    """What `claim` found or did; `created` is what `release_claim` takes back, newest first."""

    identity: str
    created_folders: list[str] = field(default_factory=list)
    created_sentinel: bool = False


class RootView:
    """A verified root, held open. Folders are opened once each; close it in the thread that made it."""

    def __init__(self, fs: Fs, root_fd: int) -> None:
        self._fs = fs
        self._folders: dict[tuple[str, ...], int | None] = {(): root_fd}

    def folder(self, parts: tuple[str, ...]) -> int | None:
        """Descriptor of a folder below the root, None when it does not exist. Raises OSError (a link on the way counts as an error)."""
        if parts in self._folders:
            return self._folders[parts]
        parent = self.folder(parts[:-1])
        fd: int | None = None
        if parent is not None:
            with contextlib.suppress(FileNotFoundError):
                fd = self._fs.open_dir(parent, parts[-1])
        self._folders[parts] = fd
        return fd

    def make_folder(self, parts: tuple[str, ...]) -> int:
        """Descriptor of a folder below the root, made when it is missing. Raises OSError."""
        found = self.folder(parts)
        if found is not None:
            return found
        parent = self.make_folder(parts[:-1])
        with contextlib.suppress(FileExistsError):
            self._fs.mkdir_at(parent, parts[-1])
        fd = self._fs.open_dir(parent, parts[-1])
        self._folders[parts] = fd
        return fd

    def close(self) -> None:
        for fd in self._folders.values():
            if fd is not None:
                with contextlib.suppress(OSError):
                    self._fs.close(fd)
        self._folders.clear()


class StorageRoot:
    def __init__(self, fs: Fs, layout: Layout, name: str) -> None:
        self._fs = fs
        self._layout = layout
        self._name = name

    def claim(self, identity: str, *, create: bool, self_test: bool) -> Claim:
        """Make this root ours, or find that it is. Raises StorageUnavailable; has then undone what it did.

        create: a missing root is made and a missing sentinel is written (the first add). When false (the storage was added before) both must be
        there: writing a sentinel into the empty mount point of a share that is not mounted would declare every block absent.
        """
        claim = Claim(identity)
        try:
            self._claim(claim, create=create, self_test=self_test)
        except OSError as error:
            self.release_claim(claim)
            raise self._unavailable(f"cannot be used: {error.strerror or 'the file system answered with an error'}") from error
        except StorageUnavailable:
            self.release_claim(claim)
            raise
        return claim

    def release_claim(self, claim: Claim) -> None:
        """Take back what `claim` made. Never raises."""
        fs = self._fs
        if claim.created_sentinel:
            with contextlib.suppress(OSError):
                fd = fs.open_root(self._layout.root)
                try:
                    fs.unlink(fd, self._layout.sentinel_name)
                finally:
                    fs.close(fd)
        for path in reversed(claim.created_folders):
            with contextlib.suppress(OSError):
                fs.rmdir(path)

    def look(self, identity: str) -> RootState:
        """Is the folder at the root's path, now, the root with this identity?"""
        state, view = self.enter(identity)
        if view is not None:
            view.close()
        return state

    def enter(self, identity: str) -> tuple[RootState, RootView | None]:
        """Open the root and prove it. The view is there exactly when the state is VERIFIED; the caller closes it. Never raises OSError."""
        try:
            fd = self._fs.open_root(self._layout.root)
        except (FileNotFoundError, NotADirectoryError):
            return RootState.WRONG, None
        except OSError:
            return RootState.UNREACHABLE, None
        view = RootView(self._fs, fd)
        try:
            found = sentinels.read(self._fs, fd, self._layout.sentinel_name)
        except SentinelUnreadable:
            view.close()
            return RootState.WRONG, None
        except OSError:
            view.close()
            return RootState.UNREACHABLE, None
        if found != Sentinel(self._name, identity):
            view.close()
            return RootState.WRONG, None
        return RootState.VERIFIED, view

    def _claim(self, claim: Claim, *, create: bool, self_test: bool) -> None:
        fs, layout = self._fs, self._layout
        if layout.must_exist is not None:
            fs.close(self._open_existing(layout.must_exist, "its mount point"))
        if create:
            self._make_root(claim)
        root_fd = self._open_existing(layout.root, "its root folder")
        try:
            found = self._read_sentinel(root_fd)
            if found is None:
                if not create:
                    raise self._unavailable(
                        "has no KVCM sentinel, so it is probably not mounted or was replaced. Mount the right file system; if its blocks are "
                        "really gone, remove the storage and add it again"
                    )
                claim.created_sentinel = sentinels.write_new(fs, root_fd, layout.sentinel_name, Sentinel(self._name, claim.identity))
                found = self._read_sentinel(root_fd)
            if found is None:
                raise self._unavailable("does not keep the sentinel that was written to it")
            if found.storage != self._name:
                raise self._unavailable(
                    f"belongs to the storage '{found.storage}'. Choose another folder; if that storage is no longer in use anywhere, delete its "
                    f"blocks and the file {layout.sentinel_name} in that folder first"
                )
            claim.identity = found.identity
            if self_test:
                self._self_test(root_fd, claim.identity)
        finally:
            fs.close(root_fd)

    def _make_root(self, claim: Claim) -> None:
        missing: list[str] = []
        path = self._layout.root.rstrip("/") or "/"
        while path != "/":
            try:
                self._fs.close(self._fs.open_root(path))
                break
            except FileNotFoundError:
                missing.append(path)
                path = os.path.dirname(path.rstrip("/"))
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._fs.mkdir(folder)
                claim.created_folders.append(folder)

    def _open_existing(self, path: str, what: str) -> int:
        try:
            return self._fs.open_root(path)
        except FileNotFoundError:
            raise StorageUnavailable(f"Storage '{self._name}' cannot be opened: {what} '{path}' does not exist.") from None

    def _read_sentinel(self, root_fd: int) -> Sentinel | None:
        try:
            return sentinels.read(self._fs, root_fd, self._layout.sentinel_name)
        except SentinelUnreadable as error:
            raise self._unavailable(f"has a sentinel file {self._layout.sentinel_name} that cannot be used, because {error}") from None

    def _self_test(self, root_fd: int, identity: str) -> None:
        """Write, read and delete a small file (`check_storage_available_when_open`)."""
        fs, name = self._fs, f"{self._layout.sentinel_name}.{identity}.{os.getpid()}.check"
        fd = fs.open_file(root_fd, name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            fs.write(fd, b"kvcm")
            fs.sync(fd)
            if fs.read(fd, 4, 0) != b"kvcm":
                raise self._unavailable("does not give back what is written to it")
        finally:
            fs.close(fd)
            fs.unlink(root_fd, name)

    def _unavailable(self, what: str) -> StorageUnavailable:
        return StorageUnavailable(f"Storage '{self._name}' cannot be opened: the folder '{self._layout.root}' {what}.")
