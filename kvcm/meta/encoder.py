"""The port through which `meta` reaches encoded bytes (design D2: encode once, join per reply).

`server.py` injects an implementation from `kvcm.protocol`; `meta` never imports protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LocationSpec = tuple[str, str]
"""(spec name, URI)."""


class LocationEncoder(Protocol):
    def encode(self, type_code: int, specs: Sequence[LocationSpec]) -> bytes:
        """Bytes of one CacheLocation, framed as one element of a repeated field number 2 (tag, length, message).

        Field 2 is `locations` in GetCacheLocationResponse and GetCacheMetaResponse; replies that carry it under another number re-frame.
        """
        ...

    def decode(self, framed: bytes) -> tuple[int, list[LocationSpec]]:
        """(storage type, specs) of bytes made by `encode`."""
        ...
