"""`dummy`: the storage of tests and benchmarks. Upstream's paths are repeatable, so clients of upstream's test suite find them by key.

Compared with the other folder storages: no nonce (a location that is being deleted therefore counts as present for writers, I-DS-6), probes on
each read without remembering the answer (its clients delete files and look at once, wire contract 8.3), and the root folder is made when the storage is
opened. A writer that is late past its deadline can reach a new owner's file; that is a known limit of this kind, and the reason why no other kind is
built like this.
"""

from __future__ import annotations

from kvcm.common.clock import Clock
from kvcm.common.errors import InvalidArgument
from kvcm.common.ids import IdSource
from kvcm.data_storage.filesystem import FileSystemBackend
from kvcm.data_storage.fs import Fs
from kvcm.data_storage.layout import Layout, check_root, folder_prefix
from kvcm.data_storage.model import DummySpec, Storage
from kvcm.data_storage.naming import check_storage_name
from kvcm.data_storage.pool import DEFAULT_DEADLINE_S, BlockingPool
from kvcm.data_storage.port import BackendTraits


def dummy_layout(storage: Storage) -> Layout:
    """Root path and stem, joined with exactly one '/'. Raises InvalidArgument for a root that cannot be used."""
    spec = storage.spec
    if not isinstance(spec, DummySpec):
        raise InvalidArgument(f"Storage '{storage.name}' has a configuration that does not belong to its type 'dummy'.")
    check_storage_name(storage.name)
    check_root(storage.name, spec.root_path)
    traits = BackendTraits(probe_on_read=True, unique_paths=False)
    return Layout(storage.type.type_name, storage.name, folder_prefix(spec.root_path), spec.key_count_per_file, traits)


class DummyBackend(FileSystemBackend):
    def __init__(
        self,
        storage: Storage,
        pool: BlockingPool,
        clock: Clock,
        ids: IdSource,
        *,
        fs: Fs | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        super().__init__(storage, dummy_layout(storage), pool, clock, ids, fs=fs, deadline_s=deadline_s, probe_ttl_us=0)
