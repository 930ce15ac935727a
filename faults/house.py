"""The house that is set on fire: etcd, Redis and managers as processes of their own, with gates in front of the stores that a late write is tried on.

Instance `load` of group `default` holds the blocks. Instance `held` of group `held` reaches Redis through a gate, and so does each manager its registry.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from faults.gate import Gate
from faults.secrets import OPTIONS, Secrets
from faults.terms import Term, terms_of
from faults.weather import Weather
from kvcm.client import AdminClient
from kvcm.client.config import ClientConfig
from kvcm.common.redis.testing import RedisServer
from kvcm.common.testing_ports import free_ports
from kvcm.config.model import MetaBackendConfig
from kvcm.config.persisted import group_to_dict, storage_to_dict
from kvcm.config.startup import default_group, default_storage
from kvcm.etcd.testing import EtcdServer
from kvcm.service.testing import ManagerProcess

LOAD: Final = "load"
HELD: Final = "held"
BEHIND: Final = {"through": "redis", "behind": "async_redis"}
STORES: Final = ("etcd", "redis")
# etcd's shortest lease is 1.5 elections: with its default it would be 2 s.
_ETCD_OPTIONS = ("--heartbeat-interval=20", "--election-timeout=200")
_PATIENCE_S = 60.0
CALL_MS: Final = 2000
FAILOVER_MS: Final = 30_000
LONGEST_CALL_S: Final = (CALL_MS + FAILOVER_MS) / 1000 + 3.0
"""Of a client that looks for the leader all its time; a busy machine included."""
_METRIC = re.compile(r"^kvcm_(\S+) ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plan:
    """`stores`: where leases and registry live; `mode`: how metadata reaches Redis.

    `weather`: every way to a store leads through `House.weather`, and Redis survives a crash. `secured`: etcd wants certificates and a login (`secrets`).
    `stream_entries`: that Redis keeps for followers, 0 for the usual number.
    """

    stores: str = "etcd"
    mode: str = "through"
    lease_ms: int = 1000
    nodes: int = 3
    weather: bool = False
    secured: bool = False
    stream_entries: int = 0


class Node:
    """A manager that may be down."""

    def __init__(self, name: str, manager: ManagerProcess) -> None:
        self.name = name
        self.manager = manager
        self.up = False

    @property
    def pid(self) -> int:
        return self.manager.pid

    @property
    def address(self) -> str:
        return self.manager.meta_address

    def kill(self) -> None:
        self.up = False
        self.manager.kill()

    def terminate(self) -> None:
        """SIGTERM; returns at once. A second one would end it without order."""
        self.up = False
        self.manager.send(signal.SIGTERM)

    def ended(self) -> int:
        """Its exit code, when it has ended. Raises subprocess.TimeoutExpired."""
        return self.manager.wait(40)

    def start(self) -> None:
        self.manager.start()
        self.up = True

    def suspend(self) -> None:
        """Returns when it stands still."""
        self.up = False
        self.manager.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.manager.send(signal.SIGCONT)
        self.up = True

    def metrics(self) -> dict[str, float]:
        """Its series without `kvcm_`, as name or name{labels}. Empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.manager.admin_http_url}/metrics", timeout=5) as answer:
                return {name: float(value) for name, value in _METRIC.findall(answer.read().decode())}
        except (OSError, urllib.error.URLError):
            return {}


class House:
    """`with House(Plan()) as house:`. Blocking; nothing here needs a loop."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="kvcm-faults-", ignore_cleanup_errors=True)))
        self.redis = RedisServer(durable=plan.weather)
        self.secrets = Secrets(self._folder) if plan.secured and plan.stores == "etcd" else None
        guards: tuple[str, ...] = () if self.secrets is None else OPTIONS
        self.etcd = EtcdServer(*_ETCD_OPTIONS, *guards, tls=self.secrets.tls if self.secrets else None) if plan.stores == "etcd" else None
        self.weather: dict[str, Weather] = {}
        self.nodes: list[Node] = []
        self.registry_gates: dict[str, Gate] = {}
        self.instances = 0

    def __enter__(self) -> House:
        try:
            self._stack.enter_context(self.redis)
            if self.etcd is not None:
                self._stack.enter_context(self.etcd)
                if self.secrets is not None:
                    self.secrets.enable(self.etcd)
            if self.plan.weather:
                ports = {"redis": self.redis.port} | ({} if self.etcd is None else {"etcd": self.etcd.only.port})
                self.weather = {store: self._stack.enter_context(Weather(port)) for store, port in ports.items()}
            self.held_gate = self._stack.enter_context(Gate(self._redis_port))
            self._write_startup()
            for number in range(self.plan.nodes):
                self._add_node(f"node-{number}")
            with ThreadPoolExecutor(self.plan.nodes) as pool:
                list(pool.map(self._stack.enter_context, [node.manager for node in self.nodes]))
            for node in self.nodes:
                node.up = True
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for node in self.nodes:
            if node.manager.process is not None and node.manager.process.poll() is None:
                node.manager.send(signal.SIGCONT)
                node.manager.send(signal.SIGKILL)
        self._stack.close()

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def others(self, node: Node) -> list[Node]:
        return [other for other in self.nodes if other is not node]

    def terms(self) -> list[Term]:
        return terms_of({node.name: node.manager.log for node in self.nodes})

    def is_warm(self, node: Node) -> bool:
        """It has complete copies of all instances, and nearly everything that the leader has told."""
        found = node.metrics()
        warm = found.get('follower_copies{state="warm"}', 0)
        return warm >= self.instances > 0 and not found.get('follower_copies{state="filling"}', 1) and found.get("follower_lag_entries", 0) < 100

    def behind(self, node: Node) -> float:
        """Blocks that have not reached Redis yet; -1 when the node does not say."""
        return node.metrics().get("meta_redis_behind_blocks", -1)

    def client_config(self, instance: str = LOAD, call_ms: int = CALL_MS, failover_ms: int = FAILOVER_MS) -> ClientConfig:
        return ClientConfig.parse(
            {
                "address": ["static://" + ",".join(node.address for node in self.nodes)],
                "instance_group": "default" if instance == LOAD else instance,
                "instance_id": instance,
                "block_size": 16,
                "location_spec_infos": {"tp0": 1024},
                "model_deployment": {"model_name": "m", "dtype": "bf16", "tp_size": 1},
                "meta_channel_config": {"call_timeout": call_ms, "connection_timeout": 1000, "failover_timeout": failover_ms},
            }
        )

    async def add_held_group(self) -> None:
        """The group whose metadata reach Redis through `held_gate`."""
        async with AdminClient([node.manager.admin_address for node in self.nodes], failover_s=_PATIENCE_S) as admin:
            (template,) = [group for group in await admin.list_groups() if group.name == "default"]
            await admin.create_group(named(template, HELD, f"redis://127.0.0.1:{self.held_gate.port}/"))

    async def rescue(self) -> list[str]:
        """After a round that did not end: every node goes on and is up again. Their logs, which the house would take with it, are copied; returns where."""
        kept = self.copy_logs(Path(tempfile.gettempdir()))
        for node in self.nodes:
            if node.manager.process is not None and node.manager.process.poll() is None:
                node.resume()
            if not node.up:
                await asyncio.to_thread(node.start)
        return kept

    def copy_logs(self, folder: Path) -> list[str]:
        """The log of every node, in all its lives, to this folder, which is made; returns where."""
        folder.mkdir(parents=True, exist_ok=True)
        copies = []
        for node in self.nodes:
            copy = folder / f"kvcm-faults-{os.getpid()}-{self.plan.stores}-{self.plan.mode}-{node.name}.log"
            copy.write_text(node.manager.log, encoding="utf-8")
            copies.append(str(copy))
        return copies

    @property
    def _redis_port(self) -> int:
        return self.weather["redis"].port if self.weather else self.redis.port

    @property
    def _metadata_uri(self) -> str:
        stream = f"?stream_max_entries={self.plan.stream_entries}" if self.plan.stream_entries else ""
        return f"redis://127.0.0.1:{self._redis_port}/{stream}"

    def _write_startup(self) -> None:
        storage: dict[str, Any] = storage_to_dict(default_storage())
        storage["storage_spec"].update(root_path=f"{self._folder}/blocks/", key_count_per_file=1)
        group: dict[str, Any] = group_to_dict(default_group())
        group["quota"] = {"capacity": 1 << 50, "quota_config": []}
        indexer = group["cache_config"]["meta_indexer_config"]
        indexer["max_key_count"] = 1 << 40
        indexer["meta_storage_backend_config"] = {"storage_type": BEHIND[self.plan.mode], "storage_uri": self._metadata_uri}
        (self._folder / "startup.json").write_text(json.dumps({"storage_config": storage, "instance_group": group}))

    def _add_node(self, name: str) -> None:
        names = ("rpc_port", "http_port", "admin_rpc_port", "admin_http_port")
        ports = free_ports(len(names))
        if self.etcd is not None:
            port = self.weather["etcd"].port if self.weather else self.etcd.only.port
            gate = self._stack.enter_context(Gate(port))
            query = "" if self.secrets is None else self.secrets.query
            lease, registry = f"etcd://127.0.0.1:{port}/faults{query}", f"etcd://127.0.0.1:{gate.port}/faults{query}"
        else:
            gate = self._stack.enter_context(Gate(self._redis_port))
            lease, registry = f"redis://127.0.0.1:{self._redis_port}/?cluster_name=faults", f"redis://127.0.0.1:{gate.port}/?cluster_name=faults"
        self.registry_gates[name] = gate
        settings = {
            **{f"kvcm.service.{port}": str(number) for port, number in zip(names, ports, strict=True)},
            "kvcm.service.advertised_host": "127.0.0.1",
            "kvcm.leader_elector.node_id": name,
            "kvcm.leader_elector.lease_ms": str(self.plan.lease_ms),
            "kvcm.coordination.uri": lease,
            "kvcm.registry_storage.uri": registry,
            "kvcm.startup_config": str(self._folder / "startup.json"),
        }
        self.nodes.append(Node(name, ManagerProcess(settings, ready_s=_PATIENCE_S)))


def named(template: Any, name: str, metadata_uri: str = "") -> Any:
    """A group like `template`; with `metadata_uri` its blocks are written through to there."""
    cache = template.cache_config
    indexer = cache.meta_indexer
    if metadata_uri:
        indexer = replace(indexer, backend=MetaBackendConfig(storage_type="redis", storage_uri=metadata_uri))
    reclaim = replace(cache.reclaim_strategy, storage_unique_name=template.storage_candidates[0])
    return replace(template, name=name, version=1, cache_config=replace(cache, reclaim_strategy=reclaim, meta_indexer=indexer))


async def until(question: Callable[[], bool], what: str, timeout_s: float = _PATIENCE_S) -> None:
    """Asks in a thread, every 50 ms. Raises TimeoutError that names `what`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    while not await asyncio.to_thread(question):
        if loop.time() >= end:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        await asyncio.sleep(0.05)
