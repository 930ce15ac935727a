"""Locations as JSON objects, the durable form (behaviour 2.3, 9.2): upstream's field names, so that stores can be read by both.

`checksum` and `prev_key` are left out when there is none. Storages are named by their URIs: the small numbers in a header only live as long as the process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from kvcm.common.errors import InternalError, InvalidArgument
from kvcm.common.uri import parse_uri
from kvcm.data_storage.model import StorageType
from kvcm.meta.encoder import LocationEncoder
from kvcm.meta.location import REPORTED_CODES, Block, Location, LocationFields, Status, restore

_STORED = (Status.WRITING, Status.SERVING, Status.DELETING)


class DamagedRecord(InvalidArgument):
    """A stored record does not have the shape it must have."""


class RecordCodec:
    def __init__(self, encoder: LocationEncoder, slot_of: Callable[[str], int]) -> None:
        self._encoder = self.encoder = encoder
        self._slot_of = self.slot_of = slot_of

    def to_dict(self, location: Location) -> dict[str, Any]:
        fields = location.fields()
        _, specs = self._encoder.decode(location.wire)
        record: dict[str, Any] = {
            "id": fields.location_id,
            "status": int(fields.status),
            "type": fields.type_code,
            "spec_size": len(specs),
            "create_time": fields.create_time_us,
            "location_specs": [{"name": name, "uri": uri} for name, uri in specs],
        }
        if fields.checksum:
            record["checksum"] = fields.checksum
        if fields.previous_key is not None:
            record["prev_key"] = str(fields.previous_key)
        return record

    def from_dict(self, record: Mapping[str, Any]) -> Location:
        """Raises DamagedRecord for anything that `to_dict` does not write; a bad size is never read as 0."""
        try:
            specs = [(_text(spec["name"]), _text(spec["uri"])) for spec in record["location_specs"]]
            uris = [parse_uri(uri) for _, uri in specs]
            hosts = {uri.host for uri in uris}
            if len(hosts) != 1:
                raise DamagedRecord("a stored location must lie in exactly one storage")
            previous = record.get("prev_key")
            status = Status(int(record["status"]))
            if status not in _STORED:
                raise DamagedRecord("a stored location is WRITING, SERVING or DELETING")
            fields = LocationFields(
                status=status,
                type_code=StorageType(int(record["type"])),
                storage_slot=self._slot_of(hosts.pop()),
                create_time_us=int(record["create_time"]),
                size=sum(uri.size() for uri in uris),
                location_id=_text(record["id"]),
                previous_key=None if previous is None else int(previous),
                checksum=int(record.get("checksum", 0)),
            )
            return restore(fields, self._encoder.encode(fields.type_code, specs))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error, InvalidArgument, InternalError) as error:
            raise DamagedRecord(f"a stored location record is damaged ({type(error).__name__})") from error

    def block_to_list(self, block: Block) -> list[dict[str, Any]]:
        return [self.to_dict(location) for location in block]

    def block_from_list(self, records: object) -> Block:
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            raise DamagedRecord("a stored block record is not a list of locations")
        # What hosts report is not stored; upstream does store it, and there too it is hidden until the hosts report anew.
        block = tuple(self.from_dict(record) for record in records if record.get("type") not in REPORTED_CODES)
        if len({location.raw_id for location in block}) != len(block):
            raise DamagedRecord("two locations of a stored block have the same id")
        return block


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is needed")
    return value
