"""Does a block have to be written? One row per rule of wire contract 4.12."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from kvcm.data_storage.model import NfsSpec, Storage, StorageType
from kvcm.data_storage.port import BackendTraits
from kvcm.manager.ports import Storages
from kvcm.manager.presence import Presence
from kvcm.meta.location import Location, begin_write, condemn, promote
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

CODEC = ProtoLocationEncoder()
SLOTS = {"file": 1, "dummy": 2, "down": 3, "quarantined": 4}


class Known:
    """`file` has unique paths, `dummy` has not, `down` is not available, `quarantined` cannot be opened."""

    def name_of(self, slot: int) -> str:
        return next(name for name, number in SLOTS.items() if number == slot)

    def available(self, name: str) -> bool:
        return name in ("file", "dummy")

    def backend(self, name: str) -> object:
        if name == "quarantined":
            return None
        return SimpleNamespace(traits=BackendTraits(probe_on_read=name == "dummy", unique_paths=name != "dummy"))


def a(state: str, storage: str = "file", specs: str = "tp0 tp1") -> Location:
    wire = CODEC.encode(4, [(name, f"{storage}://{storage}/{name}") for name in specs.split()])
    location = begin_write(type_code=4, storage_slot=SLOTS[storage], create_time_us=1, size=1, location_id="abcdefgh", previous_key=None, wire=wire)
    return {"writing": location, "serving": promote(location), "deleting": condemn(location)}[state]


@dataclass
class Row:
    block: Sequence[Location]
    missing: bool
    wanted: str = "tp0 tp1"
    replicas: int = 1
    coverage: bool = True
    target: str | None = None


ROWS = [
    Row([], True),
    Row([a("serving")], False),
    Row([a("writing")], False),
    Row([a("deleting")], True),
    # Where the bytes are counts.
    Row([a("serving", "down")], True),
    Row([a("writing", "down")], True),
    Row([a("serving", "down"), a("serving")], False),
    Row([a("serving", "down")], False, target="down"),
    Row([a("serving", "down")], True, target="file"),
    # What the copy covers counts, with spec groups; one copy must cover all.
    Row([a("serving", specs="tp0")], True),
    Row([a("serving", specs="tp0")], False, wanted="tp0"),
    Row([a("serving", specs="tp0"), a("serving", specs="tp1")], True),
    Row([a("serving", specs="tp0 tp1 tp2")], False),
    Row([a("serving", specs="tp0")], False, coverage=False),
    # How many there are counts.
    Row([a("serving")], True, replicas=2),
    Row([a("serving"), a("writing")], False, replicas=2),
    Row([a("serving"), a("deleting")], True, replicas=2),
    Row([a("serving")], False, replicas=0),
    Row([a("serving")], False, replicas=-3),
    # Repeatable paths: the same place must not be handed out twice (I-DS-6).
    Row([a("deleting", "dummy")], False),
    Row([a("deleting", "dummy", "tp0")], False),
    Row([a("deleting", "dummy", "tp2")], True),
    Row([a("serving", "dummy")], True, replicas=2),
    Row([a("serving", "dummy")], False, replicas=2, target="dummy"),
    Row([a("serving", "dummy", "tp0")], True),
    Row([a("serving", "dummy", "tp0")], False, target="dummy"),
    Row([a("serving", "dummy", "tp2")], True, target="dummy"),
    Row([a("serving", "dummy", "tp0")], True, target="file"),
    # What cannot be opened is treated as the stricter kind.
    Row([a("deleting", "quarantined")], False),
    Row([a("serving", "quarantined")], True),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_table(row: Row) -> None:
    presence = Presence(cast(Storages, Known()), CODEC)
    target = None if row.target is None else Storage(row.target, StorageType.NFS, NfsSpec("/x/"))
    assert presence.is_missing(tuple(row.block), row.wanted.split(), row.replicas, row.coverage, target) is row.missing
