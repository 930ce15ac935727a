"""A real Redis Cluster for tests: three masters (or more) on free ports, formed and changed by commands alone, stopped for certain."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import hiredis

from kvcm.common.redis.cluster_slots import SLOTS, slot_of
from kvcm.common.redis.connection import Arg
from kvcm.common.redis.testing import RedisServer
from kvcm.common.testing_ports import free_port

_READY_S = 30.0
_POLL_S = 0.02


class ClusterNode(RedisServer):
    def __init__(self, node_timeout_ms: int, *options: str, durable: bool = False, tls: Sequence[str] = ()) -> None:
        """`tls`: see RedisCluster. `met`: the port by which other nodes know it, and name it to clients with TLS."""
        self.bus = free_port()
        self.met = free_port() if tls else 0
        if tls:
            certificate, key, ca = tls
            options += ("--tls-port", str(self.met), "--tls-cluster", "yes", "--tls-auth-clients", "no")
            options += ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", ca)
        clustered = ("--cluster-enabled", "yes", "--cluster-port", str(self.bus), "--cluster-node-timeout", str(node_timeout_ms))
        super().__init__(*clustered, *options, durable=durable)
        self.met = self.met or self.port

    def ok(self, *args: Arg) -> Any:
        """The answer, which must be no error."""
        reply = self.call(*args)
        assert not isinstance(reply, hiredis.ReplyError), f"{args[:3]}: {reply}"
        return reply

    @property
    def name(self) -> str:
        text: bytes = self.ok("CLUSTER", "MYID")
        return text.decode()

    def is_ok(self) -> bool:
        return b"cluster_state:ok" in self.ok("CLUSTER", "INFO")


class RedisCluster:
    """`with RedisCluster() as cluster:`. Masters share the slots evenly; `replicas` of them have one replica each, further nodes behind the masters."""

    def __init__(self, masters: int = 3, replicas: int = 0, node_timeout_ms: int = 3000, durable: bool = False, tls: Sequence[str] = ()) -> None:
        """`tls`: files with certificate, key and authority of all nodes; they then speak TLS too, on ports of their own."""
        self.nodes = [ClusterNode(node_timeout_ms, durable=durable, tls=tls) for _ in range(masters + replicas)]
        self._scheme = "rediss-cluster" if tls else "redis-cluster"
        self._masters = masters
        self._stack = ExitStack()

    @property
    def masters(self) -> Sequence[ClusterNode]:
        """As it was formed."""
        return self.nodes[: self._masters]

    @property
    def uri(self) -> str:
        return f"{self._scheme}://{','.join(f'127.0.0.1:{node.met}' for node in self.nodes)}/"

    def __enter__(self) -> RedisCluster:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node)
            self._form()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def flush(self) -> None:
        for node in self.masters:
            node.ok("FLUSHALL")

    def holder(self, slot: int) -> ClusterNode:
        """By what the first node that runs says."""
        for first, last, node, *_ in self.nodes[0].ok("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(one for one in self.nodes if one.port == node[1])
        raise AssertionError(f"nobody holds slot {slot}")

    def of_key(self, key: str | bytes) -> ClusterNode:
        return self.holder(slot_of(key.encode() if isinstance(key, str) else key))

    def keys(self, pattern: str = "*") -> list[str]:
        return sorted(key for node in self.masters for key in node.keys(pattern))

    def begin_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        target.ok("CLUSTER", "SETSLOT", slot, "IMPORTING", source.name)
        source.ok("CLUSTER", "SETSLOT", slot, "MIGRATING", target.name)

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode, names: Sequence[str | bytes] | None = None) -> int:
        """These keys or all of the slot; returns how many."""
        moved = 0
        while keys := list(names) if names is not None else source.ok("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.ok("MIGRATE", "127.0.0.1", target.met, "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
            if names is not None:
                break
        return moved

    def finish_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        self.move_keys(slot, source, target)
        for node in (target, source, *(node for node in self.masters if node not in (source, target))):
            node.ok("CLUSTER", "SETSLOT", slot, "NODE", target.name)

    def move(self, slot: int, target: ClusterNode) -> None:
        source = self.holder(slot)
        self.begin_move(slot, source, target)
        self.finish_move(slot, source, target)

    def wait_ok(self) -> None:
        """Every node that runs thinks that the cluster is complete."""
        self.eventually(lambda: all(node.is_ok() for node in self.nodes if node.runs), "a complete cluster")

    @staticmethod
    def eventually(true: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not true():
            assert time.monotonic() < deadline, f"it never happened: {what}"
            time.sleep(_POLL_S)

    def _form(self) -> None:
        for number, node in enumerate(self.nodes):
            node.ok("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(self.masters):
            node.ok("CLUSTER", "ADDSLOTSRANGE", number * SLOTS // self._masters, (number + 1) * SLOTS // self._masters - 1)
        for one in self.nodes:
            for other in self.nodes:
                if one is not other:
                    one.ok("CLUSTER", "MEET", "127.0.0.1", other.met, other.bus)
        known = b"cluster_known_nodes:%d" % len(self.nodes)
        self.eventually(lambda: all(known in node.ok("CLUSTER", "INFO") for node in self.nodes), "nodes that know each other")
        for master, replica in zip(self.masters, self.nodes[self._masters :], strict=False):
            name = master.name.encode()
            self.eventually(lambda replica=replica, name=name: name in replica.ok("CLUSTER", "NODES"), "a replica that knows its master")  # type: ignore[misc]
            replica.ok("CLUSTER", "REPLICATE", name)
        self.wait_ok()
