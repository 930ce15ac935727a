"""Exact bytes and exact JSON of every served request and reply.

The JSON texts were written by hand from the wire contract. The bytes are not trusted because the code made them: `decode` below reads them with
nothing but the contract's own tables (goldens/wire_fields.txt) and must find what the JSON says.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.json_codec import json_to_message, message_to_json

pytestmark = pytest.mark.unit

GOLDENS = Path(__file__).parent.parent / "goldens"
MODULES: dict[str, ModuleType] = {"meta": meta, "admin": admin}
CASES = [
    pytest.param(package, case, id=f"{package}-{index}-{case['message']}")
    for package in MODULES
    for index, case in enumerate(json.loads((GOLDENS / f"{package}_messages.json").read_text()))
]
SERVED = {
    "meta": "RegisterInstance GetInstanceInfo GetCacheLocation GetCacheMeta StartWriteCache FinishWriteCache RemoveCache TrimCache GetClusterInfo",
    "admin": "AddStorage EnableStorage DisableStorage RemoveStorage UpdateStorage ListStorage CreateInstanceGroup UpdateInstanceGroup"
    " RemoveInstanceGroup GetInstanceGroup ListInstanceGroup RegisterInstance RemoveInstance GetInstanceInfo ListInstanceInfo CheckHealth"
    " GetManagerClusterInfo",
}
INT64_VALUE = {1: ("value", False, "int64")}


def table(file: str, package: str) -> dict[str, str]:
    found: dict[str, str] = {}
    packages: list[str] = []
    for line in (GOLDENS / file).read_text().splitlines():
        if line.startswith("["):
            packages = line.strip("[]").split()
        elif "=" in line and not line.startswith("#") and package in packages:
            name, _, content = line.partition(" =")
            found[name] = content.strip()
    return found


def fields_of(package: str, message: str) -> dict[int, tuple[str, bool, str]]:
    """Number -> (name, repeated, type), from the transcribed contract."""
    if message == "google.protobuf.Int64Value":
        return INT64_VALUE
    content = table("wire_fields.txt", package)[message]
    words = [entry.split() for entry in content.split(", ")] if content else []
    return {int(entry[0]): (entry[1], "rep" in entry[2:-1], entry[-1]) for entry in words}


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def plain(package: str, kind: str, number: int) -> object:
    """A varint as the JSON value of its type."""
    signed = number - (1 << 64) if number >= 1 << 63 else number
    if kind in ("int64", "uint64"):
        return str(signed if kind == "int64" else number)
    if kind == "bool":
        return bool(number)
    if kind == "int32":
        return signed
    names = dict(entry.split() for entry in table("wire_enums.txt", package)[kind].split(", "))
    return names.get(str(signed), signed)


def decode(package: str, message: str, data: bytes) -> dict[str, Any]:
    fields, at = fields_of(package, message), 0
    out: dict[str, Any] = {}
    while at < len(data):
        tag, at = varint(data, at)
        name, repeated, kind = fields[tag >> 3]
        values: list[Any]
        if tag & 7 == 0:
            number, at = varint(data, at)
            values = [plain(package, kind, number)]
        elif tag & 7 == 1:
            values, at = [struct.unpack("<d", data[at : at + 8])[0]], at + 8
        else:
            assert tag & 7 == 2
            size, at = varint(data, at)
            part, at = data[at : at + size], at + size
            assert len(part) == size
            values = delimited(package, kind, part)
        if repeated:
            out.setdefault(name, []).extend(values)
        else:
            assert name not in out
            out[name] = values[0]
    return out


def delimited(package: str, kind: str, part: bytes) -> list[Any]:
    if kind == "string":
        return [part.decode()]
    if kind in ("int64", "uint64", "int32", "bool"):
        values, at = [], 0
        while at < len(part):
            number, at = varint(part, at)
            values.append(plain(package, kind, number))
        return values
    nested = decode(package, kind, part)
    return [nested.get("value", "0")] if kind.startswith("google.protobuf.") else [nested]


def without_defaults(value: Any) -> Any:
    """proto3 does not write defaults, JSON does; a sub-message that is present stays, even an empty one."""
    if isinstance(value, list):
        return [without_defaults(item) for item in value]
    if not isinstance(value, dict):
        return value
    default_names = {"code": "UNSPECIFIED", "type": "ST_UNSPECIFIED", "root_verified": "ROOT_STATE_UNKNOWN"}
    kept = {}
    for key, item in value.items():
        if item in ("", 0, "0", False, []) or item == default_names.get(key, object()):
            continue
        kept[key] = without_defaults(item)
    return kept


@pytest.mark.parametrize(("package", "case"), CASES)
def test_bytes_hold_what_the_json_says_under_the_contracts_numbers(package: str, case: dict[str, str]) -> None:
    decoded = decode(package, case["message"], bytes.fromhex(case["hex"]))
    assert without_defaults(decoded) == without_defaults(json.loads(case["json"]))


@pytest.mark.parametrize(("package", "case"), CASES)
def test_bytes_and_json_are_exactly_these(package: str, case: dict[str, str]) -> None:
    cls = getattr(MODULES[package], case["message"])
    from_bytes = cls.FromString(bytes.fromhex(case["hex"]))
    assert message_to_json(from_bytes).decode() == case["json"]
    from_json = json_to_message(case["json"].encode(), cls)
    assert from_json.SerializeToString(deterministic=True).hex() == case["hex"]
    assert from_json == from_bytes


def test_offset_zero_is_present_in_bytes_and_json() -> None:
    reply = meta.StartWriteCacheResponse()
    reply.block_mask.offset = 0
    # field 3, length 2: field 1 varint 0
    assert reply.SerializeToString() == b"\x1a\x02\x08\x00"
    assert b'"block_mask":{"offset":0}' in message_to_json(reply)


@pytest.mark.parametrize("package", MODULES)
def test_every_served_rpc_has_a_golden_of_its_request_and_reply(package: str) -> None:
    rpcs = table("wire_enums.txt", package)
    pinned = {case["message"] for case in json.loads((GOLDENS / f"{package}_messages.json").read_text())}
    for rpc in SERVED[package].split():
        assert set(rpcs[f"rpc {rpc}"].split()) <= pinned, rpc
