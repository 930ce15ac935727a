"""An engine for tests that speaks to a running manager over either wire, and writes and loses real files.

    engine = Engine(HttpWire(manager.http_url), HttpWire(manager.admin_http_url), tmp_path)
    engine.set_up("pruning", "dummy")
    write = engine.put([1, 2, 3])
    engine.lose(write, [2])
    assert engine.prefix([1, 2, 3]) == write.places[:1]

Every call must succeed unless `refused` is used. Names are made from `set_up`'s, so one manager serves many tests side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from kvcm.service.testing_wire import Wire, code, message

SIZE = 1024
PATIENCE_S = 10.0
_POLL_S = 0.02

Places = dict[str, str]
"""Spec name -> URI."""


@dataclass(frozen=True, slots=True)
class StartedWrite:
    """`places`: one per key that is to be written, with `keys` those keys. `mask` as the wire has it; `locations` likewise."""

    session: str
    mask: dict[str, Any]
    keys: list[int]
    places: list[Places]
    locations: list[dict[str, Any]]

    def place_of(self, key: int) -> Places:
        return self.places[self.keys.index(key)]


def path_of(uri: str) -> Path:
    return Path(urlparse(uri).path)


def places_of(location: Mapping[str, Any]) -> Places:
    return {spec["name"]: spec["uri"] for spec in location["location_specs"]}


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Poll until `true()`; an AssertionError that names `what` after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(_POLL_S)


class Engine:
    def __init__(self, meta: Wire, admin: Wire, folder: Path) -> None:
        self.meta = meta
        self.admin = admin
        self.folder = folder
        self.name = ""

    # -- administration ------------------------------------------------------------------------------------------------------------------------

    def set_up(
        self,
        name: str,
        kind: str = "dummy",
        specs: Sequence[str] = ("tp0",),
        groups: Mapping[str, Sequence[str]] | None = None,
        quota: Mapping[str, Any] | None = None,
        indexer: Mapping[str, Any] | None = None,
    ) -> None:
        """A storage of `kind` (the wire's name of its specification), a group that uses it and an instance, all named `name`."""
        self.name = name
        self.add_storage(kind)
        self.ok(self.admin, "CreateInstanceGroup", instance_group=self.group(quota, indexer))
        self.register(specs, groups)

    def add_storage(self, kind: str) -> None:
        root = f"{self.folder}/{self.name}/" if kind == "nfs" else f"{self.folder}/{self.name}"
        self.ok(self.admin, "AddStorage", storage={"global_unique_name": self.name, kind: {"root_path": root, "key_count_per_file": 1}})

    def group(self, quota: Mapping[str, Any] | None = None, indexer: Mapping[str, Any] | None = None) -> dict[str, Any]:
        trigger = {"used_percentage": 3.2}  # above 1: never reclaimed
        return {
            "name": self.name,
            "storage_candidates": [self.name],
            "global_quota_group_name": f"{self.name}_quota",
            "max_instance_count": 10,
            "quota": dict(quota or {"capacity": 1 << 40}),
            "cache_config": {
                "reclaim_strategy": {"storage_unique_name": self.name, "reclaim_policy": 1, "trigger_strategy": trigger, "delay_before_delete_ms": 0},
                "data_storage_strategy": 2,
                "meta_indexer_config": dict(indexer or {"max_key_count": 10_000, "meta_storage_backend_config": {"storage_type": "local"}}),
            },
            "version": 1,
        }

    def register(self, specs: Sequence[str] = ("tp0",), groups: Mapping[str, Sequence[str]] | None = None) -> None:
        self.ok(self.meta, "RegisterInstance", **self.registration(specs, groups))

    def registration(self, specs: Sequence[str] = ("tp0",), groups: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
        return {
            "trace_id": "register",
            "instance_group": self.name,
            "instance_id": self.name,
            "block_size": 8,
            "model_deployment": {"model_name": "m", "dtype": "FP8", "tp_size": len(specs), "dp_size": 1, "pp_size": 1},
            "location_spec_infos": [{"name": name, "size": SIZE} for name in specs],
            "location_spec_groups": [{"name": name, "spec_names": list(names)} for name, names in (groups or {}).items()],
        }

    # -- blocks --------------------------------------------------------------------------------------------------------------------------------

    def start(self, keys: Sequence[int], group: str = "", **more: Any) -> StartedWrite:
        """`group`: a spec group for all keys."""
        groups = [group] * len(keys) if group else []
        fields = {"block_keys": list(keys), "location_spec_group_names": groups, "write_timeout_seconds": 600} | more
        reply = self.ok(self.meta, "StartWriteCache", instance_id=self.name, **fields)
        mask = dict(reply["block_mask"])
        there = mask["bool_masks"]["values"] if "bool_masks" in mask else [at < mask["offset"] for at in range(len(keys))]
        fresh = [key for key, present in zip(keys, there, strict=True) if not present]
        locations = reply["locations"]
        assert len(reply["write_session_id"]) == 32
        assert len(locations) == len(fresh)
        return StartedWrite(reply["write_session_id"], mask, fresh, [places_of(location) for location in locations], locations)

    @staticmethod
    def save(write: StartedWrite) -> None:
        """Write the bytes of every block that was handed out."""
        for places in write.places:
            for uri in places.values():
                path_of(uri).parent.mkdir(parents=True, exist_ok=True)
                path_of(uri).write_bytes(b"x" * SIZE)

    def finish(self, write: StartedWrite, success: Sequence[bool] | None = None) -> None:
        """`success`: one per block that was handed out; all by default."""
        values = [True] * len(write.keys) if success is None else list(success)
        self.ok(self.meta, "FinishWriteCache", **self.finishing(write, {"bool_masks": {"values": values}}))

    def finishing(self, write: StartedWrite, mask: Mapping[str, Any]) -> dict[str, Any]:
        return {"instance_id": self.name, "write_session_id": write.session, "success_blocks": mask}

    def put(self, keys: Sequence[int], group: str = "") -> StartedWrite:
        """Start, save and finish; every key must be new."""
        write = self.start(keys, group)
        assert write.keys == list(keys)
        self.save(write)
        self.finish(write)
        return write

    @staticmethod
    def lose(write: StartedWrite, keys: Sequence[int], spec: str = "") -> None:
        """Delete the files of blocks (of one spec), as if the storage had lost them."""
        for key in keys:
            for name, uri in write.place_of(key).items():
                if not spec or name == spec:
                    path_of(uri).unlink()

    def prefix(self, keys: Sequence[int], **more: Any) -> list[Places]:
        return [places_of(location) for location in self.prefix_locations(keys, **more)]

    def prefix_locations(self, keys: Sequence[int], **more: Any) -> list[dict[str, Any]]:
        reply = self.ok(self.meta, "GetCacheLocation", instance_id=self.name, query_type="QT_PREFIX_MATCH", block_keys=list(keys), **more)
        return list(reply["locations"])

    def states(self, keys: Sequence[int]) -> list[list[str]]:
        """The states of the locations of each key."""
        reply = self.ok(self.meta, "GetCacheMetaDetail", instance_id=self.name, block_keys=list(keys))
        return [[location["status"] for location in item["locations"]] for item in reply["items"]]

    def wait_gone(self, keys: Sequence[int]) -> None:
        wait_until(lambda: self.states(keys) == [["CLS_NOT_FOUND"]] * len(keys), f"blocks {list(keys)} are gone")

    # -- calls ---------------------------------------------------------------------------------------------------------------------------------

    @staticmethod
    def ok(wire: Wire, rpc: str, **request: Any) -> dict[str, Any]:
        reply = wire.call(rpc, {"trace_id": "t", **request})
        assert code(reply) == "OK", f"{rpc}: {code(reply)} {message(reply)}"
        return reply

    def refused(self, rpc: str, **request: Any) -> tuple[str, str]:
        """(code, message) of a call of the meta service that must fail."""
        reply = self.meta.call(rpc, {"trace_id": "t", **request})
        assert code(reply) != "OK", rpc
        return code(reply), message(reply)
