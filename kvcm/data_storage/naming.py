"""Names of places: which path, and so which URI, an allocation gets (wire contract 6.2 to 6.4).

Pure text; nothing here touches a disk. Dangers that this file guards against:

* Path tricks. Instance ids and spec names come from clients and become directories. `check_name_part` refuses bad ones at registration, and
  every key text is checked again here (once per distinct prefix, then remembered) before it becomes a path.
* Shared identities. With unique paths each run of blocks carries a nonce, so a late writer or a delayed delete of an earlier owner meets a
  path that nobody uses any more (design D5). Only `dummy` keeps upstream's repeatable path.
* Slots of unequal size. A client finds its slot at `blkid * size`, so a run is cut where the size changes.

This is on the path of each StartWrite: prefixes are precomputed and no `Uri` objects are built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat

from kvcm.common.errors import InvalidArgument
from kvcm.common.ids import IdSource
from kvcm.data_storage.port import AllocationFailed, AllocationItem

RESERVED_PREFIX = ".kvcm-"
"""Names that start with this belong to KVCM itself (the sentinel)."""

MAX_COMPONENT_BYTES = 255
MAX_KEYS_PER_FILE = 4096
MAX_BLOCK_BYTES = 1 << 48
_MAX_PATH_BYTES = 3900  # below PATH_MAX and the limit of `parse_uri`, with room for the parameters
_SUFFIX_BYTES = 17  # '_' and the longer of nonce and hash
_MAX_PLAIN_TAIL = 64
_MAX_REMEMBERED = 4096
_FORBIDDEN = frozenset("?&#\\/")


def component_problem(part: str) -> str | None:
    """Why this text cannot be one directory or file name, as the end of a sentence; None when it can."""
    if not part:
        return "is empty"
    if part in (".", ".."):
        return "is '.' or '..'"
    if part.startswith(RESERVED_PREFIX):
        return f"starts with the reserved text '{RESERVED_PREFIX}'"
    if not _FORBIDDEN.isdisjoint(part):
        return "contains one of the characters / ? & # \\"
    if not part.isprintable():
        return "contains a control character or another character that cannot be printed"
    if len(part.encode("utf-8", "replace")) > MAX_COMPONENT_BYTES:
        return f"is longer than {MAX_COMPONENT_BYTES} bytes"
    return None


def check_name_part(text: str) -> None:
    """Raise InvalidArgument unless `text` can be an instance id or a spec name, that is, one directory name in every store."""
    problem = component_problem(text)
    if problem is not None:
        raise InvalidArgument(f"A name must be usable as one folder name, but this one {problem}.")


def check_storage_name(text: str) -> None:
    """Raise InvalidArgument unless `text` can be a storage name: a name part that can also stand as the host of a URI."""
    check_name_part(text)
    if "@" in text or ":" in text:
        raise InvalidArgument("A storage name stands as the host in location URIs and so cannot contain '@' or ':'.")


@dataclass(slots=True)
class PackedRun:
    """One file that holds several slots: its path below the URI prefix, and how many slots it was given."""

    relative: str
    slots: int


@dataclass(slots=True)
class Allocation:
    """`uris` in the order of the items; `runs` only where files are packed."""

    uris: list[str]
    runs: list[PackedRun] = field(default_factory=list)


class Namer:
    """Names for one storage. `uri_prefix` is everything of a URI up to the stem, e.g. `file://nfs_01/tmp/nfs/`."""

    def __init__(self, uri_prefix: str, path_prefix: str, keys_per_file: int, *, unique: bool) -> None:
        if keys_per_file > MAX_KEYS_PER_FILE:
            raise InvalidArgument(f"key_count_per_file may be at most {MAX_KEYS_PER_FILE}.")
        self.uri_prefix = uri_prefix
        self.keys_per_file = max(1, keys_per_file)
        self._path_prefix = path_prefix
        self._first_name_prefix = path_prefix.rpartition("/")[2]
        self._unique = unique
        self._known: set[str] = set()

    def allocate(self, items: Sequence[AllocationItem], ids: IdSource) -> Allocation:
        """Names for `items`, in order. Raises AllocationFailed for a key text or a size that cannot be used; nothing to undo then."""
        if self.keys_per_file == 1:
            return Allocation(self._singles(items, ids))
        return self._packed(items, ids)

    def _singles(self, items: Sequence[AllocationItem], ids: IdSource) -> list[str]:
        base, known, uris = self.uri_prefix, self._known, []
        nonces = ids.nonces(len(items)) if self._unique else None
        if nonces is not None and items and self._are_plain(items):
            end = f"?size={items[0].size}"
            return [f"{base}{key}_{nonce}{end}" for (key, _), nonce in zip(items, nonces, strict=True)]
        for index, item in enumerate(items):
            key, size = item.key_text, item.size
            prefix, _, tail = key.rpartition("/")
            if prefix not in known or not tail.isalnum() or len(tail) > _MAX_PLAIN_TAIL:
                self._check(key, prefix, tail)
            if not 0 < size <= MAX_BLOCK_BYTES:
                raise _bad_size()
            uris.append(f"{base}{key}?size={size}" if nonces is None else f"{base}{key}_{nonces[index]}?size={size}")
        return uris

    def _are_plain(self, items: Sequence[AllocationItem]) -> bool:
        """Nothing to check but what is known already, and one size for all: as all items of a write mostly are."""
        keys, sizes = zip(*items, strict=True)
        if sizes.count(sizes[0]) < len(sizes) or not 0 < sizes[0] <= MAX_BLOCK_BYTES:
            return False
        prefixes, _, tails = zip(*map(str.rpartition, keys, repeat("/")), strict=True)
        return self._known.issuperset(prefixes) and all(map(str.isalnum, tails)) and max(map(len, tails)) <= _MAX_PLAIN_TAIL

    def _packed(self, items: Sequence[AllocationItem], ids: IdSource) -> Allocation:
        base, known, per_file = self.uri_prefix, self._known, self.keys_per_file
        bounds: list[int] = []
        run_size, room = -1, 0
        for index, item in enumerate(items):
            key, size = item.key_text, item.size
            prefix, _, tail = key.rpartition("/")
            if prefix not in known or not tail.isalnum() or len(tail) > _MAX_PLAIN_TAIL:
                self._check(key, prefix, tail)
            if size != run_size or not room:
                if not 0 < size <= MAX_BLOCK_BYTES:
                    raise _bad_size()
                bounds.append(index)
                run_size, room = size, per_file
            room -= 1
        nonces = ids.nonces(len(bounds)) if self._unique else None
        bounds.append(len(items))
        result = Allocation([])
        for run in range(len(bounds) - 1):
            start, end = bounds[run], bounds[run + 1]
            first = items[start]
            if nonces is not None:
                stem = f"{first.key_text}_{nonces[run]}"
            elif end - start == 1:
                stem = first.key_text
            else:
                stem = f"{first.key_text}_{_run_hash(items[start:end])}"
            result.runs.append(PackedRun(stem, end - start))
            result.uris += [f"{base}{stem}?blkid={slot}&size={first.size}" for slot in range(end - start)]
        return result

    def _check(self, key: str, prefix: str, tail: str) -> None:
        names = key.split("/")
        names[0] = self._first_name_prefix + names[0]
        names[-1] += "_" * _SUFFIX_BYTES
        # The raw parts are judged too: a prefix or suffix must not hide an empty or a '..' part.
        for part in [*key.split("/"), *names]:
            problem = component_problem(part)
            if problem is not None:
                raise AllocationFailed(f"No place can be allocated: a part of the block's key text {problem}.")
        if len((self._path_prefix + key).encode()) + _SUFFIX_BYTES > _MAX_PATH_BYTES or len(self.uri_prefix) + len(key) > _MAX_PATH_BYTES:
            raise AllocationFailed(f"No place can be allocated: the path of the block would be longer than {_MAX_PATH_BYTES} bytes.")
        if len(self._known) >= _MAX_REMEMBERED:
            self._known.clear()
        self._known.add(prefix)


def _bad_size() -> AllocationFailed:
    return AllocationFailed(f"No place can be allocated: a block's size must be from 1 to {MAX_BLOCK_BYTES} bytes.")


def _run_hash(items: Sequence[AllocationItem]) -> str:
    joined = "|".join(item.key_text for item in items)
    return hashlib.blake2b(joined.encode(), digest_size=8).hexdigest()
