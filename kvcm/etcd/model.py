"""What is asked of etcd and what it answers, as plain values. Keys and values are bytes; revisions count the whole store's changes and only grow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal


@dataclass(frozen=True, slots=True)
class KeyValue:
    """`create_revision`: of the change that created the key; it stays the same until the key is deleted. `lease` 0: none."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


@dataclass(frozen=True, slots=True)
class RangeResult:
    """`more`: the limit cut the answer short. `revision`: of the store when it answered."""

    kvs: tuple[KeyValue, ...]
    more: bool
    count: int
    revision: int

    @property
    def first(self) -> KeyValue | None:
        return self.kvs[0] if self.kvs else None


@dataclass(frozen=True, slots=True)
class Get:
    key: bytes
    range_end: bytes = b""


@dataclass(frozen=True, slots=True)
class Put:
    """`lease`: the key goes when the lease does."""

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: bytes
    range_end: bytes = b""


Op = Get | Put | Delete


@dataclass(frozen=True, slots=True)
class Compare:
    """True when the key's field equals the number; a key that does not exist has 0 everywhere."""

    key: bytes
    field: Literal["create_revision", "mod_revision", "lease"]
    equals: int


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`answers`: one for each operation of the branch that was taken; None for a put, the number of deleted keys for a delete."""

    succeeded: bool
    answers: tuple[RangeResult | int | None, ...]
    revision: int

    def found(self, number: int) -> KeyValue | None:
        """The first key that the `Get` at this place of the branch found."""
        answer = self.answers[number]
        if not isinstance(answer, RangeResult):
            raise TypeError("this operation was no Get")
        return answer.first


@dataclass(frozen=True, slots=True)
class Lease:
    """`ttl_s`: what etcd gave, which may be more than was asked for, never less."""

    id: int
    ttl_s: int


class EventKind(Enum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event:
    """Of a deletion, `kv` has only the key and the revision."""

    kind: EventKind
    kv: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """Without events: a sign of life."""

    revision: int
    events: tuple[Event, ...] = ()


def prefix_end(prefix: bytes) -> bytes:
    """The first key behind all keys that begin with this prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"
