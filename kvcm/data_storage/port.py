"""The port to a store of KV bytes.

Truth about bytes has three values (design D5). Only a definite ABSENT may hide or delete anything; UNKNOWN always means "keep and ask again".
Result lists have exactly the length of their input (I-DS-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from kvcm.common.errors import StorageError
from kvcm.common.ids import IdSource
from kvcm.data_storage.model import Storage

PACKED_MARK = b"?blkid="
"""In the URI of every place in a packed file, and of no other."""


class Truth(Enum):
    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class StorageUnavailable(StorageError):
    """The store is closed, disabled, or its root is not provably the right one."""


class AllocationFailed(StorageError):
    """No place could be allocated; the backend has already undone what it had done for this call."""


@dataclass(frozen=True, slots=True)
class BackendTraits:
    """What the manager has to know about a kind of store.

    probe_on_read: a read asks the store whether the bytes are still there (dummy, hf3fs); never for plain NFS.
    unique_paths: each allocation has its own identity (a nonce), so a block may get a second location while an old one is DELETING.
        When false (dummy keeps upstream's deterministic path) a DELETING location counts as present for writers (I-DS-6).
    """

    probe_on_read: bool
    unique_paths: bool


class AllocationItem(NamedTuple):
    """One place to allocate: `key_text` is `<instance>/<spec>/<hex key>` (wire contract 6.2), `size` in bytes (> 0)."""

    key_text: str
    size: int


class DataStorageBackend(Protocol):
    """One opened store. All methods are safe to call from the manager's loop: what can block runs in a bounded pool with a deadline."""

    @property
    def storage(self) -> Storage: ...

    @property
    def traits(self) -> BackendTraits: ...

    async def open(self) -> None:
        """Make the store usable, writing or checking its sentinel. Raises StorageUnavailable; leaves nothing behind on failure."""
        ...

    async def close(self) -> None: ...

    def available(self) -> bool:
        """Opened and not known to be broken. Enabling and disabling is the DataStorageManager's matter."""
        ...

    async def allocate(self, items: Sequence[AllocationItem], ids: IdSource) -> list[str]:
        """One URI per item, in order, each with `size` as requested and this storage's name as host (I-DS-5).

        All or nothing: raises AllocationFailed and has undone its side effects.
        """
        ...

    async def probe(self, uris: Sequence[str]) -> list[Truth]:
        """Are the bytes there? Never raises; anything that cannot be decided in time is UNKNOWN (I-DS-4)."""
        ...

    async def delete(self, uris: Sequence[str]) -> list[Truth]:
        """Delete and report what is true afterwards: ABSENT = proven gone (also when it never existed, I-DS-2).

        Never raises. Never touches bytes of any other URI (I-DS-3).
        """
        ...

    def adopt(self, uris: Sequence[str]) -> None:
        """Tell the store of locations that exist already (found at recovery), so that packed files know their live blocks. Places whose URI has no PACKED_MARK
        are nobody's business here and may be left out."""
        ...
