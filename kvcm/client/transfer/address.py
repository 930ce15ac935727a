"""From a location URI to a place in a file, for the stores this client was told of. Pure: nothing is opened or created here.

The host part of a URI names the store (wire contract 6.1). A path must lie inside that store's root: a wrong or hostile address must never
make an engine overwrite a file elsewhere. Text rules only; symbolic links below a root are the administrator's matter (the last part of a
path is opened without following one).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcm.client.errors import InvalidAddress, InvalidStorageConfig, UnknownStorage
from kvcm.common.uri import InvalidUri, parse_uri
from kvcm.data_storage.model import STORAGE_TYPE_BY_NAME, StorageType

_MAX_STORES = 1024
_MAX_END = (1 << 63) - 1
_FILE_KINDS = (StorageType.NFS, StorageType.HF3FS, StorageType.VCNS_HF3FS, StorageType.DUMMY)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one block lies: `size` bytes from `offset` in the file `path`; `root` is the store's folder."""

    path: str
    offset: int
    size: int
    root: str


@dataclass(frozen=True, slots=True)
class _Store:
    name: str
    kind_name: str
    kind: StorageType | None
    root: str


class StoreTable:
    """The stores of one client, from the JSON array text that RegisterInstance returns (wire contract 4.4)."""

    def __init__(self, stores: Mapping[str, _Store], instance_id: str) -> None:
        self._stores = stores
        self._instance_id = instance_id

    @classmethod
    def parse(cls, text: str, instance_id: str, extra_text: str = "") -> StoreTable:
        """Entries of `extra_text` are used under names that `text` does not have. Raises InvalidStorageConfig.

        Kinds of store that this client cannot use are kept by name, so that their URIs get a sentence that says so.
        """
        stores = _read_stores(extra_text) if extra_text else {}
        stores.update(_read_stores(text) if text else {})
        return cls(stores, instance_id)

    def locate(self, uri: str, index: int) -> Place:
        """The place of block number `index`. Raises InvalidAddress or UnknownStorage; the messages name the index."""
        try:
            parsed = parse_uri(uri)
            size, slot = parsed.size(), parsed.block_index()
        except InvalidUri as error:
            raise InvalidAddress(f"the address of block {index} cannot be read: {error.message}", block_index=index) from error
        store = self._stores.get(parsed.host)
        if store is None:
            raise UnknownStorage(f"the address of block {index} names a store that this client does not know", block_index=index)
        if store.kind not in _FILE_KINDS:
            raise UnknownStorage(
                f"block {index} is in store {store.name!r} of kind {store.kind_name!r}, which this client cannot move bytes to or from",
                block_index=index,
            )
        if parsed.scheme != store.kind_name:
            raise InvalidAddress(
                f"the address of block {index} has the scheme {parsed.scheme!r} but its store is of kind {store.kind_name!r}",
                block_index=index,
            )
        if size < 1 or (slot + 1) * size > _MAX_END:
            raise InvalidAddress(f"the address of block {index} has an impossible size or blkid", block_index=index)
        if not self._inside(parsed.path, store):
            raise InvalidAddress(f"the address of block {index} lies outside the root of store {store.name!r}", block_index=index)
        return Place(path=parsed.path, offset=slot * size, size=size, root=store.root)

    def _inside(self, path: str, store: _Store) -> bool:
        if not path.startswith("/") or path.endswith("/") or "\0" in path:
            return False
        parts, root = _parts(path), _parts(store.root)
        if ".." in parts:
            return False
        if len(parts) > len(root) and parts[: len(root)] == root:
            return True
        # `file` paths are root and stem joined as plain text: a root without a closing "/" runs into the instance's name
        # (wire contract 6.4).
        return store.kind is StorageType.NFS and path.startswith(f"{store.root}{self._instance_id}/")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _read_stores(text: str) -> dict[str, _Store]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidStorageConfig("storage_configs is not valid JSON") from error
    if not isinstance(entries, list) or len(entries) > _MAX_STORES:
        raise InvalidStorageConfig(f"storage_configs must be a JSON array of at most {_MAX_STORES} stores")
    stores: dict[str, _Store] = {}
    for index, entry in enumerate(entries):
        store = _read_store(entry, f"storage_configs[{index}]")
        if store.name in stores:
            raise InvalidStorageConfig(f"storage_configs names the store {store.name!r} twice")
        stores[store.name] = store
    return stores


def _read_store(entry: Any, where: str) -> _Store:
    if not isinstance(entry, Mapping):
        raise InvalidStorageConfig(f"{where} must be a JSON object")
    name, kind_name, spec = entry.get("global_unique_name"), entry.get("type"), entry.get("storage_spec")
    if not isinstance(name, str) or not name or not isinstance(kind_name, str):
        raise InvalidStorageConfig(f"{where} needs the texts global_unique_name and type")
    kind = STORAGE_TYPE_BY_NAME.get(kind_name)
    if kind not in _FILE_KINDS:
        return _Store(name, kind_name, kind, "")
    if not isinstance(spec, Mapping):
        raise InvalidStorageConfig(f"{where}.storage_spec must be a JSON object")
    root = _root(spec, kind, where)
    if not root.startswith("/") or ".." in root.split("/") or "\0" in root:
        raise InvalidStorageConfig(f"{where}.storage_spec must name an absolute folder without '..'")
    return _Store(name, kind_name, kind, root)


def _root(spec: Mapping[str, Any], kind: StorageType, where: str) -> str:
    def text(key: str) -> str:
        value = spec.get(key, "")
        if not isinstance(value, str):
            raise InvalidStorageConfig(f"{where}.storage_spec.{key} must be a text")
        return value

    if kind in (StorageType.NFS, StorageType.DUMMY):
        return text("root_path")
    mountpoint, folder = text("mountpoint"), text("root_dir")
    return f"{mountpoint.rstrip('/')}/{folder.strip('/')}" if mountpoint else folder
