"""A whole cache manager for tests, on a fake clock and with real files: registry, storages, metadata, manager, and a client that writes and reads bytes.

    world = ManagerWorld(tmp_path, ProtoLocationEncoder())
    await world.open()
    await world.add_storage("s")
    await world.add_group("g", ["s"])
    await world.register("i", group="g")
    started = await world.start("i", [1, 2, 3])
    world.write(started)
    await world.finish(started, 3)

Nothing sleeps. With a `Scheduler`, every step into the metadata store and into a storage is a point at which the test decides who goes on. File I/O
runs on the loop (`InlinePool`), so a run is repeatable; faults are put in front of the real file system (`world.fs`). `restart` is a crash: memory is
gone, files and stores stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

from kvcm.common.block_mask import BlockMask
from kvcm.common.clock import FakeClock
from kvcm.common.ids import SeededIds
from kvcm.common.uri import parse_uri
from kvcm.config.model import (
    CacheConfig,
    CachePreferStrategy,
    Instance,
    InstanceGroup,
    LocationSpecGroup,
    LocationSpecInfo,
    MetaBackendConfig,
    MetaIndexerConfig,
    ModelDeployment,
    QueryType,
    Quota,
    QuotaConfig,
    ReclaimStrategy,
)
from kvcm.config.registry import Registry
from kvcm.config.store import RegistryStore
from kvcm.config.store_memory import MemoryStore
from kvcm.config.testing import quick_hasher
from kvcm.data_storage.dummy import DummyBackend
from kvcm.data_storage.filesystem import FileSystemBackend
from kvcm.data_storage.layout import file_layout, hf3fs_layout
from kvcm.data_storage.manager import DataStorageManager
from kvcm.data_storage.model import DummySpec, Hf3fsSpec, NfsSpec, Storage, StorageType
from kvcm.data_storage.pool import DEFAULT_DEADLINE_S, BlockingPool
from kvcm.data_storage.port import AllocationItem, DataStorageBackend, Truth
from kvcm.data_storage.reported import ReportedBackend
from kvcm.data_storage.sentinel import SENTINEL_NAME
from kvcm.data_storage.testing import FaultyFs
from kvcm.manager.cache_manager import CacheManager
from kvcm.manager.ports import WireCodec
from kvcm.manager.searcher import Located, LocateQuery
from kvcm.manager.shard import InstanceShard
from kvcm.manager.write_sessions import lifetime_us
from kvcm.manager.writer import StartWrite, WriteStarted
from kvcm.meta.backend import MetadataBackend
from kvcm.meta.location import Location, Status
from kvcm.meta.open_backend import open_backend, stored_instances
from kvcm.meta.record import RecordCodec
from kvcm.meta.testing import Scheduler, SuspendingBackend

T = TypeVar("T")
Metadata = Literal["local", "file", "suspending"]
StorageKind = Literal["file", "hf3fs", "dummy"]

SIZE = 512
DELAY_MS = 1000
_HOUR_US = 3_600_000_000


class InlinePool(BlockingPool):
    """Runs each job at once on the loop: no threads, no waiting, the same order every time."""

    async def run(
        self, fn: Callable[..., T], *args: object, deadline_s: float = DEFAULT_DEADLINE_S, lane: str = "", undo: Callable[[T], None] | None = None
    ) -> T:
        return fn(*args)


@dataclass(slots=True)
class Term:
    """`Leadership` that the test moves."""

    epoch: int = 1
    ending: bool = False


class SteppedStorages(DataStorageManager):
    """Storages whose allocations, probes and deletions suspend before and after, and tell what they do.

    `on_delete(uris)` runs right before bytes go. `allocated` and `deleted` list URIs in order.
    """

    scheduler: Scheduler | None = None
    on_delete: Callable[[Sequence[str]], None] = staticmethod(lambda uris: None)

    def __init__(self, factory: Callable[[Storage], DataStorageBackend], clock: FakeClock, ids: SeededIds) -> None:
        super().__init__(factory, clock, ids)
        self.allocated: list[str] = []
        self.deleted: list[str] = []

    async def allocate(self, name: str, items: Sequence[AllocationItem]) -> list[str]:
        await self._point("allocate")
        uris = await super().allocate(name, items)
        self.allocated.extend(uris)
        await self._point("allocated")
        return uris

    async def probe(self, uris: Sequence[str]) -> list[Truth]:
        await self._point("probe")
        truths = await super().probe(uris)
        await self._point("probed")
        return truths

    async def delete(self, uris: Sequence[str]) -> list[Truth]:
        await self._point("delete")
        self.on_delete(uris)
        truths = await super().delete(uris)
        self.deleted.extend(uris)
        await self._point("deleted")
        return truths

    async def _point(self, label: str) -> None:
        if self.scheduler is not None:
            await self.scheduler.point(label)


@dataclass(slots=True)
class Write:
    """What a client knows about a write it has started. `uris[i]` are the places of `keys[i]`, by spec name."""

    instance_id: str
    session_id: str
    mask: BlockMask
    keys: list[int]
    uris: list[dict[str, str]]
    deadline_us: int
    started: WriteStarted = field(repr=False)

    def all_uris(self) -> list[str]:
        return [uri for places in self.uris for uri in places.values()]


def path_of(uri: str) -> Path:
    return Path(parse_uri(uri).path)


def content(uri: str) -> bytes:
    """The bytes that belong at a place: different at every place, so a block that is read from a wrong one is seen."""
    size = parse_uri(uri).size()
    text = uri.encode()
    return (text * (size // len(text) + 1))[:size]


def write_bytes(uri: str) -> None:
    """Write one block as a client does: at `blkid * size`, into a file that may exist."""
    parsed = parse_uri(uri)
    path = path_of(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+b") as file:
        file.seek(parsed.block_index() * parsed.size())
        file.write(content(uri))


def holds_bytes(uri: str) -> bool:
    """Is the block there, whole and right?"""
    parsed = parse_uri(uri)
    try:
        with path_of(uri).open("rb") as file:
            file.seek(parsed.block_index() * parsed.size())
            return file.read(parsed.size()) == content(uri)
    except FileNotFoundError:
        return False


class ManagerWorld:
    """One process of the manager over a folder. Everything that survives a crash belongs to the world, everything else is made anew by `open`."""

    def __init__(
        self,
        root: Path,
        codec: WireCodec,
        *,
        metadata: Metadata = "local",
        scheduler: Scheduler | None = None,
        seed: int = 0,
        suspend_answers: bool = False,
    ) -> None:
        self.root = root
        self.codec = codec
        self.metadata: Metadata = metadata
        self.scheduler = scheduler
        self.clock = FakeClock()
        self.ids = SeededIds(seed)
        self.random = Random(seed)
        self.term = Term()
        self.fs = FaultyFs()
        self.pool = InlinePool()
        self.registry_store: RegistryStore = MemoryStore()
        self.stores: dict[str, SuspendingBackend] = {}
        """The suspending metadata store of each instance, with what it has stored."""
        self._suspend_answers = suspend_answers
        self.probing = self.packed = False
        self.storages: SteppedStorages
        self.registry: Registry
        self.manager: CacheManager

    # -- life ----------------------------------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """A new process wins leadership."""
        self.build()
        await self.registry.recover(self.term.epoch)
        await self.manager.recover()

    def build(self) -> None:
        """Make the objects of a new process; they know nothing yet."""
        self.storages = SteppedStorages(self._open_storage, self.clock, self.ids)
        self.storages.scheduler = self.scheduler
        self.registry = Registry(self.registry_store, self.storages, self.clock, hasher=quick_hasher())
        records = RecordCodec(self.codec, self.storages.slot_of)

        def metadata(config: MetaBackendConfig, instance_id: str) -> MetadataBackend:
            if self.metadata == "suspending":
                known = self.stores.get(instance_id)
                return self.stores.setdefault(instance_id, known or SuspendingBackend(self.scheduler, suspend_answers=self._suspend_answers))
            return open_backend(config, instance_id, records, self.pool)

        async def stored(config: MetaBackendConfig, in_use: Collection[tuple[MetaBackendConfig, str]]) -> list[str]:
            if self.metadata == "suspending":
                used = {instance_id for _, instance_id in in_use}
                return [instance_id for instance_id in self.stores if instance_id not in used]
            return await stored_instances(config, in_use, self.pool)

        self.manager = CacheManager(self.registry, self.storages, self.codec, self.clock, self.ids, self.random, self.term, metadata, stored)

    async def restart(self) -> None:
        """Crash and come back with the next epoch. Tasks of the old process are the caller's to cancel."""
        self.term = Term(self.term.epoch + 1)
        slots = [self.storages.name_of(slot) for slot in range(1, len(self.storages._names))]
        self.build()
        for name in slots:  # stored locations of the suspending store carry numbers of the process, so these must stay the same
            self.storages.slot_of(name)
        await self.registry.recover(self.term.epoch)
        await self.manager.recover()

    def _open_storage(self, storage: Storage) -> DataStorageBackend:
        if storage.type.reported:
            return ReportedBackend(storage)
        if storage.type is StorageType.DUMMY:
            return DummyBackend(storage, self.pool, self.clock, self.ids, fs=self.fs)
        layout = file_layout(storage) if storage.type is StorageType.NFS else hf3fs_layout(storage)
        return FileSystemBackend(storage, layout, self.pool, self.clock, self.ids, fs=self.fs)

    # -- administration ------------------------------------------------------------------------------------------------------------------------

    def root_of(self, name: str) -> Path:
        return self.root / name

    def sentinel_of(self, name: str) -> Path:
        return self.root_of(name) / SENTINEL_NAME

    def storage(self, name: str, kind: StorageKind = "file", per_file: int = 1, *, touch: bool = False) -> Storage:
        root = str(self.root_of(name))
        if kind == "dummy":
            return Storage(name, StorageType.DUMMY, DummySpec(root, per_file))
        if kind == "hf3fs":
            return Storage(name, StorageType.HF3FS, Hf3fsSpec(str(self.root), name, key_count_per_file=per_file, touch_file_when_create=touch))
        return Storage(name, StorageType.NFS, NfsSpec(f"{root}/", per_file))

    async def add_storage(self, name: str, kind: StorageKind = "file", per_file: int = 1, *, touch: bool = False) -> None:
        await self.registry.add_storage(self.storage(name, kind, per_file, touch=touch))

    def group(
        self,
        name: str,
        candidates: Iterable[str],
        *,
        capacity: int = 1 << 40,
        by_type: Iterable[tuple[StorageType, int]] = (),
        strategy: CachePreferStrategy = CachePreferStrategy.PREFER_3FS,
        delay_ms: int = DELAY_MS,
        max_keys: int = 1_000_000,
    ) -> InstanceGroup:
        backend = MetaBackendConfig("local")
        if self.metadata == "file":
            backend = MetaBackendConfig("dummy", f"file://{self.root}/meta/{name}?fsync=false")
        return InstanceGroup(
            name=name,
            storage_candidates=tuple(candidates),
            global_quota_group_name="quota",
            max_instance_count=0,
            quota=Quota(capacity, tuple(QuotaConfig(kind, limit) for kind, limit in by_type)),
            cache_config=CacheConfig(
                reclaim_strategy=ReclaimStrategy(delay_before_delete_ms=delay_ms),
                data_storage_strategy=strategy,
                meta_indexer=MetaIndexerConfig(max_key_count=max_keys, backend=backend),
            ),
        )

    async def add_group(self, group: InstanceGroup) -> None:
        await self.registry.create_group(group)

    async def update_group(self, name: str, **changes: object) -> None:
        """Change top-level fields of a group."""
        old = self.registry.get_group(name)
        assert old is not None
        await self.registry.update_group(replace(old, version=old.version + 1, **changes), old.version)  # type: ignore[arg-type]

    @staticmethod
    def instance(
        instance_id: str, group: str, specs: Iterable[tuple[str, int]] = (("tp0", SIZE),), spec_groups: Iterable[tuple[str, Sequence[str]]] = ()
    ) -> Instance:
        return Instance(
            instance_id=instance_id,
            instance_group_name=group,
            quota_group_name="",
            block_size=4,
            location_spec_infos=tuple(LocationSpecInfo(name, size) for name, size in specs),
            model_deployment=ModelDeployment("model", "fp16"),
            location_spec_groups=tuple(LocationSpecGroup(name, tuple(names)) for name, names in spec_groups),
        )

    async def simple(self, kind: StorageKind = "file", per_file: int = 1, *, delay_ms: int = DELAY_MS, instances: Sequence[str] = ("i",)) -> None:
        """A new process with one storage `s`, one group `g` and some instances."""
        self.probing, self.packed = kind != "file", per_file > 1
        await self.open()
        await self.add_storage("s", kind, per_file)
        await self.add_group(self.group("g", ["s"], delay_ms=delay_ms))
        for instance_id in instances:
            await self.manager.register(self.instance(instance_id, "g"))

    # -- a client ------------------------------------------------------------------------------------------------------------------------------

    async def start(self, instance_id: str, keys: Sequence[int], *, groups: Sequence[str] = (), timeout_s: int = 30, replicas: int = 1) -> Write:
        """Raises what the manager raises."""
        began = self.clock.monotonic_us()
        started = await self.manager.start_write(self.manager.shard(instance_id), StartWrite(list(keys), tuple(groups), timeout_s, replicas))
        there = started.mask.expand(len(keys))
        assert there is not None
        return Write(
            instance_id=instance_id,
            session_id=started.session_id,
            mask=started.mask,
            keys=[key for key, present in zip(keys, there, strict=True) if not present],
            uris=[dict(self.codec.decode(wire)[1]) for wire in started.locations],
            deadline_us=began + lifetime_us(timeout_s, len(started.locations)),
            started=started,
        )

    @staticmethod
    def write(write: Write) -> None:
        for uri in write.all_uris():
            write_bytes(uri)

    async def finish(self, write: Write, success: int | Sequence[bool] | None = None, checksums: Sequence[int] = ()) -> None:
        """`success`: how many of the first blocks, or one bool each; all by default."""
        if success is None:
            success = len(write.keys)
        mask = BlockMask(offset=success) if isinstance(success, int) else BlockMask(values=tuple(success))
        await self.manager.finish_write(self.manager.shard(write.instance_id), write.session_id, mask, checksums)

    async def put(self, instance_id: str, keys: Sequence[int], **options: object) -> Write:
        """Start, write all bytes, finish."""
        write = await self.start(instance_id, keys, **options)  # type: ignore[arg-type]
        self.write(write)
        await self.finish(write)
        return write

    async def locate(self, instance_id: str, keys: Sequence[int], query_type: QueryType = QueryType.PREFIX_MATCH, **options: object) -> Located:
        query = LocateQuery(query_type, list(keys), **options)  # type: ignore[arg-type]
        return await self.manager.locate(self.manager.shard(instance_id), query, self.clock.wall_us())

    async def read(self, instance_id: str, keys: Sequence[int], query_type: QueryType = QueryType.PREFIX_MATCH, **options: object) -> list[dict[str, str]]:
        """Spec name -> URI for each location of the reply."""
        located = await self.locate(instance_id, keys, query_type, **options)
        return self.split(b"".join(located.parts))

    def split(self, framed: bytes) -> list[dict[str, str]]:
        """The locations of a reply, one after the other in one piece of bytes."""
        found, at = [], 0
        while at < len(framed):
            length, shift, body = 0, 0, at + 1
            while True:
                byte = framed[body]
                length |= (byte & 0x7F) << shift
                body, shift = body + 1, shift + 7
                if not byte & 0x80:
                    break
            found.append(dict(self.codec.decode(framed[at : body + length])[1]))
            at = body + length
        return found

    # -- time ----------------------------------------------------------------------------------------------------------------------------------

    async def advance(self, seconds: float) -> None:
        """Let time pass, then do what is due."""
        self.clock.advance_us(int(seconds * 1e6))
        await self.manager.sweep()
        await self.manager.run_due_deletions()
        await self.manager.tend_reports()

    async def rest(self, rounds: int = 8) -> None:
        """Let so much time pass that everything that can end has ended: sessions, delays, retries."""
        for _ in range(rounds):
            await self.advance(_HOUR_US / 1e6)

    # -- looking inside ------------------------------------------------------------------------------------------------------------------------

    def holders(self) -> list[InstanceShard]:
        """Shards of served and of removed instances."""
        return list(self.manager._instances.holders().values())

    def shard(self, instance_id: str) -> InstanceShard:
        return self.manager.shard(instance_id)

    def states(self, instance_id: str, key: int) -> list[Status]:
        return [location.status for location in self.shard(instance_id).index.get(key)]

    def locations(self) -> list[tuple[str, int, Location]]:
        """Every location of every shard: (instance id, key, location)."""
        return [
            (shard.instance_id, key, location) for shard in self.holders() for page in shard.index.pages() for key in page for location in shard.index.get(key)
        ]

    def uris_of(self, location: Location) -> list[str]:
        return [uri for _, uri in self.codec.decode(location.wire)[1]]

    def files(self) -> set[Path]:
        """Every block file below the roots of storages; sentinels and metadata are no block files."""
        found = set()
        for storage in self.storages.list():
            for path in self.root_of(storage.name).rglob("*"):
                if path.is_file() and path.name != SENTINEL_NAME:
                    found.add(path)
        return found
