"""Two managers as processes that elect one another over a folder: who leads, what one shows as a metric, and an engine for either."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from kvcm.common.testing_waiting import eventually
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_blocks import Engine
from kvcm.service.testing_wire import ADMIN, META, GrpcWire, HttpWire

LEASE_MS = 1000


class ManagerPair:
    """Both run until `stack` ends, and one of them leads when this is made. `instance`: what the engines use; `settings`: besides those of the election."""

    def __init__(self, stack: ExitStack, folder: Path, instance: str, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self._instance = instance
        (folder / "lock").mkdir()
        shared = {
            "kvcm.coordination.uri": f"file://{folder}/lock",
            "kvcm.leader_elector.lease_ms": str(LEASE_MS),
            "kvcm.leader_elector.loop_interval_ms": "50",
        }
        with ThreadPoolExecutor(2) as pool:  # they take their time to start
            made = [ManagerProcess(shared | dict(settings), ready_s=60) for _ in range(2)]
            self.nodes: list[ManagerProcess] = list(pool.map(stack.enter_context, made))
        eventually(lambda: any(self.leads(node) for node in self.nodes), "a leader")

    @staticmethod
    def leads(node: ManagerProcess) -> bool:
        found: bool = HttpWire(node.admin_http_url).call("CheckHealth", {"trace_id": "t"})["is_leader"]
        return found

    @property
    def leader(self) -> ManagerProcess:
        return next(node for node in self.nodes if node.process is not None and node.process.poll() is None and self.leads(node))

    @property
    def follower(self) -> ManagerProcess:
        leader = self.leader
        return next(node for node in self.nodes if node is not leader)

    def engine_of(self, node: ManagerProcess) -> Engine:
        engine = Engine(GrpcWire(node.meta_address, META), GrpcWire(node.admin_address, ADMIN), self.folder)
        engine.name = self._instance
        return engine


def metric(manager: ManagerProcess, name: str) -> float:
    """A metric without labels; `name` without its prefix."""
    with urllib.request.urlopen(f"{manager.admin_http_url}/metrics", timeout=10) as answer:
        found = re.search(rf"^kvcm_{name} ([0-9.e+]+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])
