"""The stores of a crash story, each kind of them, and a recount that reads them past the managers."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

from kvcm.common.redis.testing import RedisServer
from kvcm.config.store import RegistrySnapshot, open_store
from kvcm.etcd.testing import EtcdServer

KINDS: Final = ("file", "through", "behind", "etcd")
"""Leases, registry and metadata: in files; all in Redis, written through or behind; leases and registry in etcd and metadata in Redis."""
_SERVING: Final = 3
_METRIC = re.compile(r"^kvcm_(\S+) ([0-9.e+-]+)$", re.MULTILINE)


class Stores:
    """`with Stores("through", folder, "name") as stores:`. Instances are of one group whose metadata lie as `indexer` says."""

    def __init__(self, kind: str, folder: Path, name: str) -> None:
        assert kind in KINDS, kind
        self.kind = kind
        self._folder = folder
        self._name = name
        self._stack = ExitStack()
        self.redis: RedisServer | None = None if kind == "file" else RedisServer()
        self.etcd: EtcdServer | None = EtcdServer("--heartbeat-interval=20", "--election-timeout=200") if kind == "etcd" else None

    def __enter__(self) -> Stores:
        for server in (self.redis, self.etcd):
            if server is not None:
                self._stack.enter_context(server)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def registry_uri(self) -> str:
        if self.etcd is not None:
            return f"etcd://{self.etcd.address}/{self._name}"
        return f"{self._redis_uri}?cluster_name={self._name}" if self.redis is not None else f"local://{self._folder}/registry.json"

    @property
    def _redis_uri(self) -> str:
        assert self.redis is not None
        return self.redis.uri

    @property
    def settings(self) -> dict[str, str]:
        lease = f"file://{self._folder}/lease" if self.kind == "file" else self.registry_uri
        if self.kind == "file":
            (self._folder / "lease").mkdir(exist_ok=True)
        return {"kvcm.coordination.uri": lease, "kvcm.registry_storage.uri": self.registry_uri}

    @property
    def indexer(self) -> dict[str, Any]:
        if self.kind == "file":
            where = {"storage_type": "dummy", "storage_uri": f"file://{self._folder}/blocks"}
        else:
            where = {"storage_type": "async_redis" if self.kind == "behind" else "redis", "storage_uri": self._redis_uri}
        return {"max_key_count": 10_000, "meta_storage_backend_config": where}

    # -- recounts ------------------------------------------------------------------------------------------------------------------------------

    def blocks(self, instances: Iterable[str]) -> dict[str, dict[int, list[str]]]:
        """Instance -> block -> URIs of its locations."""
        found = {instance_id: self._records(instance_id) for instance_id in instances}
        return {
            instance_id: {key: [spec["uri"] for record in records for spec in record["location_specs"]] for key, records in blocks.items()}
            for instance_id, blocks in found.items()
        }

    def unsettled(self, instances: Iterable[str]) -> int:
        """Locations that are being written or deleted."""
        return sum(record["status"] != _SERVING for instance_id in instances for records in self._records(instance_id).values() for record in records)

    def registered(self) -> set[str]:
        return set(self.registry().tables.get("instance", {}))

    def registry(self) -> RegistrySnapshot:
        async def read() -> RegistrySnapshot:
            store = open_store(self.registry_uri)
            try:
                await store.open()
                return await store.load()
            finally:
                await store.close()

        return asyncio.run(read())

    def _records(self, instance_id: str) -> dict[int, list[dict[str, Any]]]:
        return self._in_file(instance_id) if self.redis is None else self._in_redis(self.redis, instance_id)

    @staticmethod
    def _in_redis(redis: RedisServer, instance_id: str) -> dict[int, list[dict[str, Any]]]:
        found = {}
        for name in redis.keys(f"kvcache:instance_{instance_id}:cache_*"):
            fields = redis.fields(name)
            found[int(name.rpartition("_")[2])] = [json.loads(text) for field, text in fields.items() if field.startswith("L#")]
        return {key: records for key, records in found.items() if records}

    def _in_file(self, instance_id: str) -> dict[int, list[dict[str, Any]]]:
        """The last line about a block counts; a line without its end was never acknowledged."""
        path = Path(f"{self._folder}/blocks.{quote(instance_id, safe='')}")
        found: dict[int, list[dict[str, Any]]] = {}
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else ():
            if line.endswith("\n"):
                for key, records in json.loads(line)["c"].items():
                    found[int(key)] = records or []
        return {key: records for key, records in found.items() if records}


def metrics_of(admin_http_url: str) -> dict[str, float]:
    """Series without `kvcm_`, as name or name{labels}."""
    with urllib.request.urlopen(f"{admin_http_url}/metrics", timeout=10) as answer:
        return {name: float(value) for name, value in _METRIC.findall(answer.read().decode())}
