"""Random identities as an argument.

Three kinds: session ids (32 characters, wire contract 4.12), location ids (8 characters, unique inside a block) and allocation nonces
(12 hex digits in the path of each allocation, so that a late writer or a delayed delete can never touch a new owner, design D5).
"""

from __future__ import annotations

import os
import random
from typing import Protocol

LOCATION_ID_CHARS = 8
NONCE_CHARS = 12
SESSION_ID_CHARS = 32


class IdSource(Protocol):
    def session_id(self) -> str: ...

    def location_ids(self, count: int) -> list[str]: ...

    def nonces(self, count: int) -> list[str]: ...


def _cut(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), width)]


class RandomIds:
    """Identities from the operating system's generator; one read per batch."""

    def session_id(self) -> str:
        return os.urandom(SESSION_ID_CHARS // 2).hex()

    def location_ids(self, count: int) -> list[str]:
        return _cut(os.urandom(count * LOCATION_ID_CHARS // 2).hex(), LOCATION_ID_CHARS)

    def nonces(self, count: int) -> list[str]:
        return _cut(os.urandom(count * NONCE_CHARS // 2).hex(), NONCE_CHARS)


class SeededIds:
    """Reproducible identities for tests and scenario files."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def session_id(self) -> str:
        return self._random.randbytes(SESSION_ID_CHARS // 2).hex()

    def location_ids(self, count: int) -> list[str]:
        return _cut(self._random.randbytes(count * LOCATION_ID_CHARS // 2).hex(), LOCATION_ID_CHARS)

    def nonces(self, count: int) -> list[str]:
        return _cut(self._random.randbytes(count * NONCE_CHARS // 2).hex(), NONCE_CHARS)
