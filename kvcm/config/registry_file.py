"""The content of a local registry file: text <-> tables (wire contract 1.4, "Local registry file"). Pure, no I/O.

Layout, shared with upstream: one JSON object; each key is a table name or an instance id; each value is a *string* that holds a JSON object
of id -> JSON string. The `instance` table only lists ids (id -> id); the record of an instance is under its own key.

Dangers: whatever does not parse must survive every rewrite byte for byte until its id is overwritten or removed; and our own record (the
fence) must have the same shape as a table, or upstream could not read the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from kvcm.config.errors import StoreDamaged
from kvcm.config.store import OWN_PREFIX, TABLES, Change, QuarantinedRecord, Record, RegistrySnapshot, Table

FENCE_KEY = f"{OWN_PREFIX}fence__"
DAMAGED_PREFIX = f"{OWN_PREFIX}damaged__"
_NOT_JSON = "The registry file is not a JSON object; restore it from a backup or move it away to start with an empty registry."


class RegistryFile:
    """One parsed file. `apply` changes it in place; `data` is what to write."""

    def __init__(self, raw: dict[str, object], errors: str = "strict") -> None:
        self._raw = raw
        self._errors = errors

    @classmethod
    def parse(cls, data: bytes) -> RegistryFile:
        """Raises StoreDamaged when the data is not a JSON object at its top level. Bytes that are not UTF-8 survive inside values."""
        errors = "strict"
        try:
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                errors = "surrogateescape"
                text = data.decode("utf-8", errors=errors)
            raw = json.loads(text)
        except (ValueError, RecursionError):
            raise StoreDamaged(_NOT_JSON) from None
        if not isinstance(raw, dict):
            raise StoreDamaged(_NOT_JSON)
        return cls(raw, errors)

    def data(self) -> bytes:
        try:
            return json.dumps(self._raw, ensure_ascii=False, indent=1).encode("utf-8", errors=self._errors)
        except UnicodeEncodeError:
            # An escaped half character in a damaged value: it can only be written escaped again.
            return json.dumps(self._raw, indent=1).encode("ascii")

    @property
    def fence(self) -> int:
        epoch = (self._table(FENCE_KEY) or {}).get("epoch")
        return int(epoch) if isinstance(epoch, str) and epoch.isascii() and epoch.isdigit() and len(epoch) <= 19 else 0

    def set_fence(self, fence: int) -> None:
        self._raw[FENCE_KEY] = dump({"epoch": str(fence)})

    def snapshot(self) -> RegistrySnapshot:
        bad: list[QuarantinedRecord] = []
        tables: dict[Table, dict[str, Record]] = {}
        for table in TABLES:
            if table != "instance":
                tables[table] = self._read_table(table, bad)
        tables["instance"] = {}
        for instance_id in self._listed(bad):
            record = record_of((self._table(instance_id) or {}).get(instance_id))
            if record is not None:
                tables["instance"][instance_id] = record
            else:
                reason = "its record cannot be read" if instance_id in self._raw else "its record is missing"
                bad.append(QuarantinedRecord("instance", instance_id, reason))
        if FENCE_KEY in self._raw and self._table(FENCE_KEY) is None:
            bad.append(QuarantinedRecord(FENCE_KEY, "", "the record of the last leader cannot be read and counts as absent"))
        return RegistrySnapshot(tables=tables, quarantined=tuple(bad), fence=self.fence)

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table == "instance":
                self._change_instance(change)
                continue
            entries = self._writable(change.table)
            if change.record is None:
                entries.pop(change.id, None)
            else:
                entries[change.id] = dump(change.record)
            self._raw[change.table] = dump(entries)

    def _change_instance(self, change: Change) -> None:
        listed: dict[str, object] = {instance_id: instance_id for instance_id in self._listed([])}
        self._writable("instance")
        if change.record is None:
            listed.pop(change.id, None)
            self._raw.pop(change.id, None)
        else:
            listed[change.id] = change.id
            self._raw[change.id] = dump({change.id: dump(change.record)})
        self._raw["instance"] = dump(listed)

    def _writable(self, table: Table) -> dict[str, object]:
        """The entries of a table; the text of an unreadable one is put aside under a key of our own before it is replaced."""
        entries = self._table(table)
        if entries is None and table in self._raw:
            self._raw[f"{DAMAGED_PREFIX}{table}"] = dump({"text": dump(self._raw[table])})
        return entries or {}

    def _listed(self, bad: list[QuarantinedRecord]) -> list[str]:
        """Ids of the registered instances. From the records themselves when the list cannot be read: nobody is lost with the list."""
        entries = self._table("instance")
        if entries is not None:
            return list(entries)
        if "instance" not in self._raw:
            return []
        bad.append(QuarantinedRecord("instance", "", "the list of instances cannot be read; it is rebuilt from the records"))
        return [key for key in self._raw if key not in TABLES and not key.startswith(OWN_PREFIX) and record_of((self._table(key) or {}).get(key)) is not None]

    def _read_table(self, table: Table, bad: list[QuarantinedRecord]) -> dict[str, Record]:
        entries = self._table(table)
        if entries is None:
            if table in self._raw:
                bad.append(QuarantinedRecord(table, "", "the whole table cannot be read"))
            return {}
        found: dict[str, Record] = {}
        for record_id, text in entries.items():
            record = record_of(text)
            if record is None:
                bad.append(QuarantinedRecord(table, record_id, "its record cannot be read"))
            else:
                found[record_id] = record
        return found

    def _table(self, key: str) -> dict[str, object] | None:
        return record_of(self._raw.get(key))


def record_of(text: object) -> Record | None:
    """The JSON object in a string, or None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def dump(value: object) -> str:
    """The text of a stored record."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
