"""What the manager needs from its surroundings. `server.py` passes the real ones, tests pass real or faulty ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvcm.config.model import InstanceGroup
from kvcm.data_storage.model import Storage
from kvcm.data_storage.port import AllocationItem, DataStorageBackend, Truth
from kvcm.meta.encoder import LocationEncoder
from kvcm.meta.key_packing import KeyPacking


class Storages(Protocol):
    """The part of DataStorageManager that block handling uses."""

    @property
    def availability_epoch(self) -> int:
        """Grows whenever the answer of `available` may have changed for any storage."""
        ...

    def get(self, name: str) -> Storage | None: ...

    def backend(self, name: str) -> DataStorageBackend | None: ...

    def available(self, name: str) -> bool: ...

    def slot_of(self, name: str) -> int: ...

    def name_of(self, slot: int) -> str: ...

    async def allocate(self, name: str, items: Sequence[AllocationItem]) -> list[str]: ...

    async def probe(self, uris: Sequence[str]) -> list[Truth]: ...

    async def delete(self, uris: Sequence[str]) -> list[Truth]: ...


class Groups(Protocol):
    def get_group(self, name: str) -> InstanceGroup | None: ...


class WireCodec(LocationEncoder, Protocol):
    """The location encoder and what replies need beyond it."""

    @property
    def packing(self) -> KeyPacking:
        """The packing of block keys that requests arrive in."""
        ...

    def encode_singles(self, type_code: int, name: str, uris: Sequence[str]) -> list[bytes]:
        """`encode` for many locations of one spec each."""
        ...

    def encode_padded(self, spec_names: Sequence[str]) -> bytes:
        """The entry that stands for a miss (wire contract 4.6)."""
        ...


class Leadership(Protocol):
    @property
    def epoch(self) -> int:
        """The fencing token of the current leadership; every store compares it (design D6)."""
        ...

    @property
    def ending(self) -> bool:
        """The leadership is being given up, and the next leader waits for it: long work ends at its next step, the next leader goes on with it."""
        ...
