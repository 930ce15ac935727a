"""The thread side of probes, deletions and touches: what is true about blocks on a disk, and making it true that they are gone.

Order of every batch: prove the root (sentinel), work from the open descriptor, and when any answer is "absent", prove the root again by its
path. An answer of absence that cannot be proven at both ends becomes UNKNOWN; so does any error other than "no such file". Nothing is removed
from the ledger before that. Sync code; runs in the I/O pool.

Packed files. A slot is freed by punching its range and the proof is that the range reads as holes or zeros (a file system keeps whole blocks,
so the ragged ends of a punched range remain as zeros). Where holes cannot be punched the slot stays PRESENT until its last sibling is deleted
too; then the file is unlinked and every later retry finds it absent. A file whose slot list may be incomplete (adopted) is unlinked only when it
holds no data at all, if the file system can tell.

A late writer can re-create a file after its unlink. It is harmless: the path has a nonce that no later allocation gets; the file is garbage
that a sweep may collect. Folders that become empty are left: removing them could race with a writer that is about to use them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from kvcm.data_storage.fs import PUNCH_UNSUPPORTED, Fs
from kvcm.data_storage.layout import BlockRef, Layout, parse_block
from kvcm.data_storage.ledger import FileState, PackLedger
from kvcm.data_storage.port import StorageUnavailable, Truth
from kvcm.data_storage.root import RootState, RootView, StorageRoot

_READ_STEP = 256 * 1024
_ZEROS = bytes(_READ_STEP)


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers in order, and the last thing that was learnt about the root (None: the root was not looked at)."""

    root: RootState | None
    truths: list[Truth]


class BlockWorker:
    def __init__(self, fs: Fs, root: StorageRoot, layout: Layout, ledger: PackLedger) -> None:
        self._fs = fs
        self._root = root
        self._layout = layout
        self._ledger = ledger

    def probe(self, identity: str, uris: Sequence[str]) -> Batch:
        """PRESENT: a file is there (for a packed slot too: a hole alone proves nothing on file systems that store zeros as holes)."""
        return self._batch(identity, uris, deleting=False)

    def delete(self, identity: str, uris: Sequence[str]) -> Batch:
        return self._batch(identity, uris, deleting=True)

    def _batch(self, identity: str, uris: Sequence[str], *, deleting: bool) -> Batch:
        refs = [parse_block(self._layout, uri) for uri in uris]
        unknown = [Truth.UNKNOWN] * len(refs)
        if not any(refs):
            return Batch(None, unknown)
        state, view = self._root.enter(identity)
        if view is None:
            return Batch(state, unknown)
        try:
            truths = [self._one(view, ref, deleting) for ref in refs]
        finally:
            view.close()
        if Truth.ABSENT not in truths:
            return Batch(state, truths)
        state = self._root.look(identity)
        if state is not RootState.VERIFIED:
            return Batch(state, [Truth.UNKNOWN if truth is Truth.ABSENT else truth for truth in truths])
        if deleting:
            for ref, truth in zip(refs, truths, strict=True):
                if ref is not None and ref.slot is not None and truth is Truth.ABSENT:
                    self._ledger.release(ref.relative, ref.slot)
        return Batch(state, truths)

    def _one(self, view: RootView, ref: BlockRef | None, deleting: bool) -> Truth:
        if ref is None:
            return Truth.UNKNOWN
        try:
            if not deleting:
                return self._look(view, ref)
            return self._delete_single(view, ref) if ref.slot is None else self._delete_slot(view, ref, ref.slot)
        except OSError:
            # ESTALE, EIO, ETIMEDOUT, EACCES, a link or a file where a folder should be, ...: nothing is known.
            return Truth.UNKNOWN

    def _look(self, view: RootView, ref: BlockRef) -> Truth:
        folder = view.folder(ref.folders)
        if folder is None:
            return Truth.ABSENT
        try:
            found = self._fs.stat(folder, ref.name)
        except FileNotFoundError:
            return Truth.ABSENT
        return Truth.PRESENT if stat.S_ISREG(found.st_mode) else Truth.UNKNOWN

    def _delete_single(self, view: RootView, ref: BlockRef) -> Truth:
        truth = self._look(view, ref)
        return self._unlink(view, ref) if truth is Truth.PRESENT else truth

    def _unlink(self, view: RootView, ref: BlockRef) -> Truth:
        folder = view.folder(ref.folders)
        if folder is not None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(folder, ref.name)
        return self._look(view, ref)

    def _delete_slot(self, view: RootView, ref: BlockRef, slot: int) -> Truth:
        state = self._ledger.mark_dying(ref.relative, slot)
        folder = view.folder(ref.folders)
        truth = self._look(view, ref)
        if folder is None or truth is not Truth.PRESENT:
            return truth
        try:
            fd = self._fs.open_file(folder, ref.name, os.O_RDWR)
        except FileNotFoundError:
            return Truth.ABSENT
        try:
            freed = self._punch(fd, slot * ref.size, ref.size)
            unlink = self._may_unlink(fd, state, punchable=freed is not None)
        finally:
            self._fs.close(fd)
        if unlink:
            return self._unlink(view, ref)
        return Truth.ABSENT if freed else Truth.PRESENT

    def _punch(self, fd: int, offset: int, length: int) -> bool | None:
        """True: the range is proven empty. False: it still has bytes (a late writer). None: this file system cannot punch."""
        try:
            self._fs.punch(fd, offset, length)
        except OSError as error:
            if error.errno not in PUNCH_UNSUPPORTED:
                raise
            return None
        return self._reads_as_zeros(fd, offset, offset + length)

    def _may_unlink(self, fd: int, state: FileState, *, punchable: bool) -> bool:
        if not state.known or not state.all_dying:
            return False
        return state.own or not punchable or self._reads_as_zeros(fd, 0, self._fs.size(fd))

    def _reads_as_zeros(self, fd: int, start: int, end: int) -> bool:
        fs, at = self._fs, start
        while at < end:
            data = fs.seek_data(fd, at)
            if data is None or data >= end:
                return True
            at = min(fs.seek_hole(fd, data), end)
            while data < at:
                piece = fs.read(fd, min(_READ_STEP, at - data), data)
                if not piece:
                    return True
                if piece != _ZEROS[: len(piece)]:
                    return False
                data += len(piece)
        return True

    def touch(self, identity: str, uris: Sequence[str]) -> list[BlockRef]:
        """Create the (empty) files of these places. All or nothing: raises OSError, or StorageUnavailable when the root is not proven."""
        state, view = self._root.enter(identity)
        if view is None:
            raise StorageUnavailable(f"the root folder of the storage is {state.value}")
        made: list[BlockRef] = []
        try:
            for relative in {ref.relative: ref for ref in map(self._ref, uris)}.values():
                fd = self._fs.open_file(view.make_folder(relative.folders), relative.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                made.append(relative)
                self._fs.close(fd)
        except OSError:
            self._remove(view, made)
            raise
        finally:
            view.close()
        return made

    def untouch(self, identity: str, made: Sequence[BlockRef]) -> None:
        """Take back a touch whose caller has gone. Never raises."""
        _, view = self._root.enter(identity)
        if view is not None:
            self._remove(view, made)
            view.close()

    def _remove(self, view: RootView, made: Sequence[BlockRef]) -> None:
        for ref in made:
            with contextlib.suppress(OSError):
                self._unlink(view, ref)

    def _ref(self, uri: str) -> BlockRef:
        ref = parse_block(self._layout, uri)
        if ref is None:
            raise OSError("a place that this storage just named cannot be read back")
        return ref
