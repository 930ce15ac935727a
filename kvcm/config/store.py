"""The port to where the registry is kept, and what every implementation promises.

Four tables (`storage`, `instance_group`, `instance`, `account`) of id -> JSON object in the persisted dialect.

Dangers the promises guard against:
- a half-applied mutation: `apply` is all or nothing; an error other than OutcomeUnknown says that nothing was written;
- a late write: after OutcomeUnknown, `load` waits for the write in question (or fails), so that what it shows is final;
- an old leader: the store keeps the highest epoch it has seen and refuses a smaller one (design D6). `apply((), epoch)` only raises it;
- one bad record: it is reported in `quarantined` and kept as it is until somebody overwrites or removes exactly that id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from kvcm.common.errors import InvalidArgument, Unsupported
from kvcm.common.failpoints import FailPoints

Table = Literal["storage", "instance_group", "instance", "account"]
TABLES: Final[tuple[Table, ...]] = ("storage", "account", "instance_group", "instance")
RESERVED_IDS: Final = frozenset(TABLES)
# Own records of a store start with this; no entity id may (I-RG-4b).
OWN_PREFIX: Final = "__kvcm_"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """Put one record, or remove it when `record` is None. Removing what is not there is no error."""

    table: Table
    id: str
    record: Record | None


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A record that is stored but not usable. `id` is empty when a whole table cannot be read. `reason` never shows the content."""

    table: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    tables: Mapping[Table, Mapping[str, Record]] = field(default_factory=dict)
    quarantined: tuple[QuarantinedRecord, ...] = ()
    fence: int = 0

    def get(self, table: Table, record_id: str) -> Record | None:
        return self.tables.get(table, {}).get(record_id)


class RegistryStore(Protocol):
    """All methods have a deadline of their own and raise StorageError (or a kind of it) when it passes."""

    async def open(self) -> None:
        """Check at start-up that the store can be used. Raises StoreDamaged or StorageError."""
        ...

    async def load(self) -> RegistrySnapshot: ...

    async def probe(self) -> None:
        """Can it be read now? Cheap: asked every few seconds by nodes that do not lead; reads no more than a little. Raises StorageError."""
        ...

    async def apply(self, changes: Sequence[Change], fence: int) -> None:
        """Raises FencedOut, StorageError (nothing written) or OutcomeUnknown (read before repeating)."""
        ...

    async def close(self) -> None:
        """Idempotent. Does not lose what was applied."""
        ...


def open_store(uri: str, points: FailPoints | None = None) -> RegistryStore:
    """The store behind `kvcm.registry_storage.uri`; call its `open()` before use. Raises Unsupported or InvalidArgument."""
    if points is not None:
        from kvcm.config.failing import FailingStore

        return FailingStore(_open(uri, points), points)
    return _open(uri, None)


def _open(uri: str, points: FailPoints | None) -> RegistryStore:
    from kvcm.common.redis.target import is_redis_uri
    from kvcm.config.store_local import LocalStore
    from kvcm.config.store_memory import MemoryStore

    scheme, separator, rest = uri.partition("://")
    if not uri or uri == "local://":
        return MemoryStore()
    if not separator:
        raise InvalidArgument("The registry URI needs a scheme: use local://<path>, or leave it empty to keep the registry in memory.")
    if scheme == "local":
        return LocalStore(rest, points=points)
    if is_redis_uri(uri):
        from kvcm.config.store_redis import RedisStore

        return RedisStore(uri)
    if scheme == "etcd":
        from kvcm.config.store_etcd import EtcdStore

        return EtcdStore(uri, points=points)
    if scheme == "raft":
        raise Unsupported(
            "A registry in raft is not part of this version. Use etcd://<host:port>/<prefix> for several managers, local://<path> for one, "
            "or leave the URI empty to keep the registry in memory."
        )
    raise InvalidArgument(
        "The registry URI has an unknown scheme: use local://<path>, redis://<host> or etcd://<host:port>, or leave it empty to keep the registry in memory."
    )
