"""A file-system storage with a faulty file system before it, and blocks of it written as a client writes them."""

from __future__ import annotations

from pathlib import Path

from kvcm.common.clock import FakeClock
from kvcm.common.ids import SeededIds
from kvcm.common.uri import parse_uri
from kvcm.data_storage.dummy import DummyBackend
from kvcm.data_storage.filesystem import FileSystemBackend
from kvcm.data_storage.layout import file_layout
from kvcm.data_storage.model import DummySpec, NfsSpec, Storage, StorageType
from kvcm.data_storage.pool import BlockingPool
from kvcm.data_storage.port import AllocationItem
from kvcm.data_storage.testing import FaultyFs

SIZE = 10_000  # not a multiple of a page, so that punched ranges have ragged ends


class World:
    def __init__(self, root: Path, per_file: int = 1, *, dummy: bool = False) -> None:
        self.root, self.fs, self.ids = root, FaultyFs(), SeededIds(3)
        self.pool = BlockingPool(threads=4)
        if dummy:
            storage = Storage("d", StorageType.DUMMY, DummySpec(str(root), per_file))
            self.backend: FileSystemBackend = DummyBackend(storage, self.pool, FakeClock(), self.ids, fs=self.fs)
        else:
            storage = Storage("n", StorageType.NFS, NfsSpec(f"{root}/", per_file))
            self.backend = FileSystemBackend(storage, file_layout(storage), self.pool, FakeClock(), self.ids, fs=self.fs)

    async def written(self, *hexes: str) -> list[str]:
        uris = await self.backend.allocate([AllocationItem(f"i/t/{text}", SIZE) for text in hexes], self.ids)
        for index, uri in enumerate(uris):
            put(uri, index + 1)
        return uris


def file_of(uri: str) -> Path:
    return Path(parse_uri(uri).path)


def put(uri: str, fill: int) -> None:
    """Write a block as a client does: at `blkid * size`, into a file that may exist."""
    parsed = parse_uri(uri)
    path = file_of(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+b") as file:
        file.seek(parsed.block_index() * parsed.size())
        file.write(bytes([fill]) * parsed.size())


def holds(uri: str, fill: int) -> bool:
    parsed = parse_uri(uri)
    with file_of(uri).open("rb") as file:
        file.seek(parsed.block_index() * parsed.size())
        return file.read(parsed.size()) == bytes([fill]) * parsed.size()
