"""From a storage's configuration to its backend. A kind that is not built is refused by name: there are no stand-ins."""

from __future__ import annotations

from kvcm.common.clock import Clock
from kvcm.common.errors import Unsupported
from kvcm.common.ids import IdSource
from kvcm.data_storage.dummy import DummyBackend
from kvcm.data_storage.filesystem import FileSystemBackend
from kvcm.data_storage.layout import file_layout, hf3fs_layout
from kvcm.data_storage.model import Storage, StorageType
from kvcm.data_storage.pool import BlockingPool
from kvcm.data_storage.port import DataStorageBackend
from kvcm.data_storage.reported import ReportedBackend

BUILT_TYPES = frozenset(
    {StorageType.NFS, StorageType.HF3FS, StorageType.VCNS_HF3FS, StorageType.DUMMY, StorageType.EVENT_REPORT_L1P5, StorageType.EVENT_REPORT_L2}
)


def open_backend(storage: Storage, pool: BlockingPool, clock: Clock, ids: IdSource) -> DataStorageBackend:
    """The backend of `storage`, not opened yet.

    Raises Unsupported for a kind that this version does not build, InvalidArgument for a configuration that cannot be used.
    """
    match storage.type:
        case StorageType.NFS:
            return FileSystemBackend(storage, file_layout(storage), pool, clock, ids)
        case StorageType.HF3FS | StorageType.VCNS_HF3FS:
            return FileSystemBackend(storage, hf3fs_layout(storage), pool, clock, ids)
        case StorageType.DUMMY:
            return DummyBackend(storage, pool, clock, ids)
        case StorageType.EVENT_REPORT_L1P5 | StorageType.EVENT_REPORT_L2:
            return ReportedBackend(storage)
        case _:
            kind = storage.type.type_name or "unspecified"
            raise Unsupported(
                f"Storage '{storage.name}' is of the kind '{kind}', which this version cannot serve yet. "
                f"It serves {', '.join(sorted(built.type_name for built in BUILT_TYPES))}."
            )
