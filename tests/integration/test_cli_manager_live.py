"""The commands that act on a manager, against a manager process: what they do is done there, and what they print is true."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcm.cli import main as cli
from kvcm.common.testing_ports import free_port
from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def manager() -> Iterator[ManagerProcess]:
    with ManagerProcess() as process:
        yield process


class Desk:
    """Runs commands in this process and returns what they printed."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capsys = capsys

    def ok(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = cli.main([*arguments, "--manager", self._address])
        captured = self._capsys.readouterr()
        assert found == code, captured.err
        return captured.out

    def refused(self, *arguments: str) -> str:
        assert cli.main([*arguments, "--manager", self._address]) == 1
        captured = self._capsys.readouterr()
        assert captured.err.startswith("error: ")
        return captured.err

    def found(self, what: str) -> Any:
        return json.loads(self.ok("get", what, "-o", "json"))


@pytest.fixture
def kvcm(manager: ManagerProcess, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(manager.admin_address, capsys)


def _names(found: list[dict[str, Any]]) -> set[str]:
    return {item["name"] for item in found}


def _resources(folder: Path, name: str) -> str:
    (folder / "blocks").mkdir(exist_ok=True)
    (folder / "all.yaml").write_text(
        f"apiVersion: kvcm.io/v1alpha1\nkind: Storage\nmetadata: {{name: {name}}}\n"
        f"spec: {{managerRef: {{name: m}}, nfs: {{rootPath: {folder / 'blocks'}}}}}\n---\n"
        f"apiVersion: kvcm.io/v1alpha1\nkind: InstanceGroup\nmetadata: {{name: {name}-group}}\n"
        f"spec: {{managerRef: {{name: m}}, storages: [{name}], quota: {{total: 1Gi}}}}\n"
    )
    return str(folder / "all.yaml")


def test_what_is_used_goes_only_by_force(kvcm: Desk, manager: ManagerProcess, tmp_path: Path) -> None:
    kvcm.ok("apply", "-f", _resources(tmp_path, "used"), code=2)
    instance = {
        "instance_group": "used-group",
        "instance_id": "used-instance",
        "block_size": 4,
        "location_spec_infos": [{"name": "tp0", "size": 64}],
        "model_deployment": {"model_name": "m", "dtype": "fp8"},
    }
    assert cli.main(["call", "meta/RegisterInstance", json.dumps(instance), "--manager", manager.meta_address]) == 0
    assert [item["id"] for item in kvcm.found("instances")] == ["used-instance"]
    assert "used-group" in kvcm.refused("delete", "storage", "used")
    assert "used-group" in kvcm.refused("delete", "group", "used-group")
    assert kvcm.ok("delete", "storage", "used", "--force") == "storage used removed\n"
    assert kvcm.ok("delete", "instance", "used-instance") == "instance used-instance removed\n"
    assert "used-instance" in kvcm.refused("delete", "instance", "used-instance")
    assert kvcm.ok("delete", "group", "used-group") == "group used-group removed\n"
    assert "used" not in _names(kvcm.found("storages"))
    assert "used-group" not in _names(kvcm.found("groups"))


def test_accounts(kvcm: Desk, manager: ManagerProcess, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("c4n4ry-p4ssword\n")
    kvcm.ok("accounts", "add", "ann", "--role", "admin", "--password-file", str(tmp_path / "password"))
    assert kvcm.found("accounts") == [{"name": "ann", "role": "admin"}]
    assert "ann" in kvcm.refused("accounts", "add", "ann", "--password-file", str(tmp_path / "password"))
    kvcm.ok("accounts", "delete", "ann")
    assert kvcm.found("accounts") == []
    assert "c4n4ry" not in manager.log


def test_a_snapshot_brings_back_what_was_removed(kvcm: Desk, tmp_path: Path) -> None:
    kvcm.ok("apply", "-f", _resources(tmp_path, "kept"), code=2)
    kvcm.ok("snapshot", "save", str(tmp_path / "snapshot.json"))
    kvcm.ok("delete", "group", "kept-group")
    kvcm.ok("delete", "storage", "kept")
    kvcm.ok("snapshot", "load", str(tmp_path / "snapshot.json"))
    assert "kept-group" in _names(kvcm.found("groups"))
    kvcm.ok("apply", "-f", str(tmp_path / "all.yaml"), code=0)
    assert "snapshot" in kvcm.refused("snapshot", "load", str(tmp_path / "all.yaml"))


def test_metrics_and_log_level(kvcm: Desk) -> None:
    kvcm.ok("get", "cluster")
    counted = [item for item in kvcm.found("metrics") if item["name"] == "service.query_counter" and item["tags"].get("api_name") == "CheckHealth"]
    assert counted[0]["value"] >= 1
    assert kvcm.ok("get", "metrics").startswith("NAME ")
    kvcm.ok("admin", "log-level", "debug")
    kvcm.ok("admin", "log-level", "INFO")


def test_leadership(capsys: pytest.CaptureFixture[str]) -> None:
    with ManagerProcess() as manager:
        kvcm = Desk(manager.admin_address, capsys)
        assert kvcm.ok("admin", "campaign-delay") == "campaign delay: 0 ms\n"
        # Of itself a node tells what is so now.
        assert [node["toldMsAgo"] for node in kvcm.found("cluster")["nodes"]] == [0]
        kvcm.ok("admin", "demote", "--stay-out", "3600000")
        assert kvcm.found("cluster")["isLeader"] is False
        assert "does not lead" in kvcm.refused("admin", "demote")
        assert "was not ready within 0.01 s" in kvcm.refused("get", "storages", "--timeout", "0.01")


def test_apply_together_with_the_start_of_a_manager(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command comes first; the manager begins to listen while it waits."""
    manager = ManagerProcess({"kvcm.service.rpc_port": str(free_port())})
    port = manager._settings["kvcm.service.rpc_port"]
    refused = Desk(f"127.0.0.1:{port}", capsys).refused("apply", "-f", _resources(tmp_path, "early"), "--wait", "0")
    assert "no manager can be reached" in refused
    done: list[int] = []
    waiting = threading.Thread(
        target=lambda: done.append(cli.main(["apply", "-f", str(tmp_path / "all.yaml"), "--manager", f"127.0.0.1:{port}", "--wait", "60"]))
    )
    waiting.start()
    with manager:
        waiting.join(90)
        assert done == [2]
        assert "early-group" in _names(Desk(manager.admin_address, capsys).found("groups"))
