"""Where a file-system backed storage keeps its blocks, and how its URIs map to paths (wire contract 6.4).

The path of a URI is the path on disk, as clients open it. `parse_block` is the only way from a URI back to the disk, and it accepts only what
this storage could have handed out: right scheme, right host, below the root, clean parts, sane numbers. Everything else touches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcm.common.errors import InvalidArgument
from kvcm.common.uri import parse_uri
from kvcm.data_storage.model import Hf3fsSpec, NfsSpec, Storage, VcnsHf3fsSpec
from kvcm.data_storage.naming import MAX_BLOCK_BYTES, MAX_KEYS_PER_FILE, Namer, check_storage_name, component_problem
from kvcm.data_storage.port import PACKED_MARK, BackendTraits
from kvcm.data_storage.sentinel import SENTINEL_NAME

_PACKED = PACKED_MARK.decode()
_MAX_PARTS = 64
_MAX_ROOT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """`path_prefix`: text in front of each stem; `root`: the folder in which that prefix lies; `name_prefix`: what is left of the prefix.

    For `file` with root path `/data/kv` (no '/' at the end; plain concatenation) the root is `/data` and `kv` is the name prefix, which the
    sentinel carries too. `must_exist`: a folder that is never created (the mount point of hf3fs).
    """

    scheme: str
    host: str
    path_prefix: str
    keys_per_file: int
    traits: BackendTraits
    must_exist: str | None = None
    touch: bool = False

    @property
    def root(self) -> str:
        return self.path_prefix.rpartition("/")[0] or "/"

    @property
    def name_prefix(self) -> str:
        return self.path_prefix.rpartition("/")[2]

    @property
    def sentinel_name(self) -> str:
        return self.name_prefix + SENTINEL_NAME

    @property
    def uri_prefix(self) -> str:
        return f"{self.scheme}://{self.host}{self.path_prefix}"

    def namer(self) -> Namer:
        return Namer(self.uri_prefix, self.path_prefix, self.keys_per_file, unique=self.traits.unique_paths)


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A place on disk. `relative` is the path below `path_prefix` (the ledger's key); `slot` is None when the file holds one block."""

    folders: tuple[str, ...]
    name: str
    relative: str
    slot: int | None
    size: int


def file_layout(storage: Storage) -> Layout:
    """`file`: paths are `root_path` and the stem, concatenated as text. Raises InvalidArgument for a root that cannot be used."""
    spec = storage.spec
    if not isinstance(spec, NfsSpec):
        raise _wrong_spec(storage)
    return _layout(storage, spec.root_path, spec.key_count_per_file, BackendTraits(probe_on_read=False, unique_paths=True))


def hf3fs_layout(storage: Storage) -> Layout:
    """`hf3fs` and `vcns_hf3fs`: `mountpoint`/`root_dir`/stem. A leading '/' of `root_dir` does not leave the mount point."""
    spec = storage.spec
    if not isinstance(spec, Hf3fsSpec | VcnsHf3fsSpec):
        raise _wrong_spec(storage)
    mountpoint = spec.mountpoint.rstrip("/") or "/"
    below = spec.root_dir.strip("/")
    prefix = f"{mountpoint.rstrip('/')}/{below}/" if below else f"{mountpoint.rstrip('/')}/"
    traits = BackendTraits(probe_on_read=True, unique_paths=True)
    return _layout(storage, prefix, spec.key_count_per_file, traits, must_exist=mountpoint, touch=spec.touch_file_when_create)


def folder_prefix(path: str) -> str:
    """A folder as the prefix of a file-system join: exactly one '/' at the end."""
    return path.rstrip("/") + "/"


def _layout(storage: Storage, path_prefix: str, keys_per_file: int, traits: BackendTraits, must_exist: str | None = None, touch: bool = False) -> Layout:
    check_storage_name(storage.name)
    check_root(storage.name, path_prefix)
    return Layout(storage.type.type_name, storage.name, path_prefix, keys_per_file, traits, must_exist, touch)


def check_root(name: str, path: str) -> None:
    """Raise InvalidArgument unless `path` is a plain absolute path that can stand in a URI."""
    if not path.startswith("/"):
        raise InvalidArgument(f"The root path of storage '{name}' must be absolute, that is, start with '/'.")
    if len(path.encode("utf-8", "replace")) > _MAX_ROOT_BYTES:
        raise InvalidArgument(f"The root path of storage '{name}' may have at most {_MAX_ROOT_BYTES} bytes.")
    for part in path.split("/"):
        # Doubled slashes are harmless and only '..' leads elsewhere; the rest would break the URI.
        problem = component_problem(part) if part not in ("", ".") and not part.startswith(".kvcm-") else None
        if problem is not None:
            raise InvalidArgument(f"The root path of storage '{name}' cannot be used: one of its parts {problem}.")


def _wrong_spec(storage: Storage) -> InvalidArgument:
    return InvalidArgument(f"Storage '{storage.name}' has a configuration that does not belong to its type '{storage.type.type_name}'.")


def parse_block(layout: Layout, text: str) -> BlockRef | None:
    """The place that this URI names in this storage, or None: then it is not one of ours and nothing may be touched for it."""
    try:
        uri = parse_uri(text)
        size = uri.size()
        slot = uri.block_index() if "blkid" in uri.params else None
    except InvalidArgument:
        return None
    if uri.scheme != layout.scheme or uri.host != layout.host or uri.user is not None or uri.port is not None:
        return None
    if not uri.params.keys() <= {"size", "blkid"} or not 0 < size <= MAX_BLOCK_BYTES or (slot or 0) >= MAX_KEYS_PER_FILE:
        return None
    if not uri.path.startswith(layout.path_prefix):
        return None
    relative = uri.path[len(layout.path_prefix) :]
    parts = relative.split("/")
    if len(parts) > _MAX_PARTS or any(component_problem(part) is not None for part in parts):
        return None
    parts[0] = layout.name_prefix + parts[0]
    return BlockRef(tuple(parts[:-1]), parts[-1], relative, slot, size)


def packed_slot(layout: Layout, text: str) -> tuple[str, int] | None:
    """(relative path, slot) of a packed place, None for any other. Cheaper than `parse_block`; used for whole recoveries."""
    prefix = layout.uri_prefix
    if _PACKED not in text or not text.startswith(prefix):
        return None
    relative, _, query = text[len(prefix) :].partition(_PACKED)
    digits = query.partition("&")[0]
    if not relative or not digits.isascii() or not digits.isdigit() or len(digits) > 4 or int(digits) >= MAX_KEYS_PER_FILE:
        return None
    return relative, int(digits)
