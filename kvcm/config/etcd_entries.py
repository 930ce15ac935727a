"""How a registry looks in etcd: keys and versioned JSON values below `/<prefix>/registry/`. Pure, no I/O.

| key | value |
|---|---|
| `fence` | `{"version":1,"epoch":n,"process":...}`: the highest epoch that has written here, and whose it is; earlier versions name no process |
| `entity/<table>/<id>` | `{"version":1,"record":{...}}`: one entity in the persisted dialect; everything behind the second slash is the id |
| `batch/commit` | `{"version":1,"batch":...,"parts":n}`: a large change that counts already and is not yet spread over the entities |
| `batch/part/<batch>/<n>` | `{"version":1,"changes":[[table,id,record or null],...]}` |

Danger: a newer version may write what this one does not understand. Such an entity is quarantined, and never half understood.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvcm.config.store import TABLES, Change, Record, Table
from kvcm.etcd.model import Delete, KeyValue, Put
from kvcm.etcd.uri import EtcdConfig

VERSION: Final = 1
# etcd takes 128 operations in a transaction unless it was told otherwise, and one and a half MiB; both leave room for what surrounds ours.
MAX_OPS: Final = 100
MAX_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Keys:
    fence: bytes
    entities: bytes
    commit: bytes
    parts: bytes

    @classmethod
    def of(cls, config: EtcdConfig) -> Keys:
        def key(*parts: str) -> bytes:
            return config.key("registry", *parts)

        return cls(key("fence"), key("entity/"), key("batch", "commit"), key("batch", "part/"))

    def entity(self, table: Table, record_id: str) -> bytes:
        return self.entities + f"{table}/{record_id}".encode("utf-8", "surrogatepass")

    def table_and_id(self, key: bytes) -> tuple[str, str]:
        """Both as they are, even if nobody ever made such a table."""
        table, _, record_id = key.removeprefix(self.entities).partition(b"/")
        return table.decode("utf-8", "backslashreplace"), _text(record_id)

    def part(self, batch: str, number: int) -> bytes:
        return self.parts + f"{batch}/{number:06}".encode()

    def parts_of(self, batch: str) -> bytes:
        return self.parts + f"{batch}/".encode()

    def op(self, change: Change) -> Put | Delete:
        key = self.entity(change.table, change.id)
        return Delete(key) if change.record is None else Put(key, dump({"record": change.record}))


@dataclass(frozen=True, slots=True)
class Batch:
    name: str
    parts: int


def epoch_of(kv: KeyValue | None) -> int | None:
    """0 when nobody has written yet; None for a value that cannot be read."""
    if kv is None:
        return 0
    epoch = parse(kv.value).get("epoch")
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) and 0 <= epoch < 1 << 63 else None


def process_of(kv: KeyValue | None) -> str:
    """Who has set the fence; empty when nobody has, or it does not say."""
    process = parse(kv.value).get("process") if kv is not None else None
    return process if isinstance(process, str) else ""


def fence_value(epoch: int, process: str) -> bytes:
    return dump({"epoch": epoch, "process": process})


def batch_of(kv: KeyValue) -> Batch | None:
    fields = parse(kv.value)
    name, parts = fields.get("batch"), fields.get("parts")
    if not isinstance(name, str) or not isinstance(parts, int):
        return None
    return Batch(name, parts)


def record_of(value: bytes) -> Record | None:
    """None for what this version cannot read."""
    found = parse(value).get("record")
    return found if isinstance(found, dict) else None


def part_value(changes: Iterable[Change]) -> bytes:
    return dump({"changes": [[change.table, change.id, change.record] for change in changes]})


def changes_of(value: bytes) -> list[Change] | None:
    """None for what this version cannot read."""
    items = parse(value).get("changes")
    if not isinstance(items, list):
        return None
    found: list[Change] = []
    for item in items:
        match item:
            case [str(table), str(record_id), dict() | None as record] if table in TABLES:
                found.append(Change(next(known for known in TABLES if known == table), record_id, record))
            case _:
                return None
    return found


def last_of_each(changes: Iterable[Change]) -> list[Change]:
    """Without what a later change of the same entity replaces: etcd takes a key once in a transaction."""
    return list({(change.table, change.id): change for change in changes}.values())


def slices(changes: Sequence[Change], max_ops: int | None) -> Iterator[list[Change]]:
    """Runs that fit into one request. A change that is too large alone makes a run alone, and etcd will refuse it."""
    run: list[Change] = []
    size = 0
    for change in changes:
        more = 200 + 4 * len(change.id) + (len(dump(change.record)) if change.record is not None else 0)
        if run and (size + more > MAX_BYTES or (max_ops is not None and len(run) >= max_ops)):
            yield run
            run, size = [], 0
        run.append(change)
        size += more
    if run:
        yield run


def dump(fields: Record) -> bytes:
    return json.dumps({"version": VERSION, **fields}, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "surrogatepass")


def parse(value: bytes) -> dict[str, Any]:
    """Empty for what is no JSON object of a version that this one can read."""
    try:
        found = json.loads(value.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("version") == VERSION else {}


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "backslashreplace")
