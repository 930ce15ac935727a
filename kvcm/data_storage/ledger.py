"""Which slots of packed files still belong to a block: the only licence to unlink a packed file.

A packed file holds several blocks, so it may go only when its last block has gone (I-DS-3). The ledger knows the files that this process
allocated, and those it was told of by `adopt`. A file that is not in the ledger is never unlinked; its slots are only punched.

Rules:
* A slot becomes *live* by allocation or adoption, *dying* when its deletion is asked for (a location never leaves DELETING, so this is final),
  and leaves the ledger when its absence is proven. A file may be unlinked when no live slot is left that is not dying.
* Recovery adopts everything before the first delete runs. For adopted files this cannot be checked here, so the caller has a second guard:
  where holes can be punched, an adopted file is unlinked only when it holds no data at all.

Bits of one file are one int (slot i = bit i). Entries vanish at zero. Used from the loop and from pool threads, hence the lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True, slots=True)
class FileState:
    """What the ledger says about one packed file. `own`: allocated by this process, so the slot list is certainly complete."""

    known: bool
    own: bool
    all_dying: bool


class PackLedger:
    def __init__(self) -> None:
        self._lock = Lock()
        # path -> live bits << 1 | (1 when own); small values are shared ints, which keeps this at one str and one dict slot per file.
        self._files: dict[str, int] = {}
        self._dying: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._files)

    def allocate(self, runs: Iterable[tuple[str, int]]) -> None:
        """New files of this process: (path, number of slots)."""
        with self._lock:
            for path, slots in runs:
                mask = (1 << slots) - 1
                known = self._files.get(path)
                if known is None:
                    self._files[path] = mask << 1 | 1
                    continue
                # A repeatable path (dummy) is given out again: its slots live again, older slots keep their state.
                self._files[path] = known | mask << 1
                self._set_dying(path, self._dying.get(path, 0) & ~mask)

    def adopt(self, slots: Iterable[tuple[str, int]]) -> None:
        """Slots found at recovery: (path, slot). A slot that is already dying stays so."""
        with self._lock:
            for path, slot in slots:
                self._files[path] = self._files.get(path, 0) | 2 << slot

    def mark_dying(self, path: str, slot: int) -> FileState:
        """The deletion of this slot was asked for. An unknown file stays unknown."""
        with self._lock:
            entry = self._files.get(path)
            if entry is None:
                return FileState(known=False, own=False, all_dying=False)
            dying = self._dying.get(path, 0) | (1 << slot & entry >> 1)
            self._set_dying(path, dying)
            return FileState(known=True, own=bool(entry & 1), all_dying=not entry >> 1 & ~dying)

    def release(self, path: str, slot: int) -> None:
        """The absence of this slot's bytes is proven."""
        with self._lock:
            entry = self._files.get(path)
            if entry is None:
                return
            entry &= ~(2 << slot)
            if entry >> 1:
                self._files[path] = entry
                self._set_dying(path, self._dying.get(path, 0) & ~(1 << slot))
            else:
                del self._files[path]
                self._dying.pop(path, None)

    def live_slots(self, path: str) -> int:
        """Bitmap of the slots that are live and not dying."""
        with self._lock:
            return self._files.get(path, 0) >> 1 & ~self._dying.get(path, 0)

    def _set_dying(self, path: str, bits: int) -> None:
        if bits:
            self._dying[path] = bits
        else:
            self._dying.pop(path, None)
