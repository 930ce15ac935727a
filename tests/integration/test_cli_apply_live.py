"""`kvcm apply` and `kvcm get` as processes against a manager process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration


def _kvcm(manager: ManagerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvcm.cli.main", *arguments, "--manager", manager.admin_address]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _write(folder: Path, *, enabled: bool = True, total: str = "1Gi") -> str:
    (folder / "storage.yaml").write_text(
        "apiVersion: kvcm.io/v1alpha1\nkind: Storage\nmetadata: {name: live}\n"
        f"spec: {{managerRef: {{name: m}}, nfs: {{rootPath: {folder / 'blocks'}}}, enabled: {str(enabled).lower()}}}\n"
    )
    (folder / "group.yaml").write_text(
        "apiVersion: kvcm.io/v1alpha1\nkind: InstanceGroup\nmetadata: {name: live-group}\n"
        f"spec: {{managerRef: {{name: m}}, storages: [live], quota: {{total: {total}, byType: {{nfs: 500M}}}}}}\n"
    )
    return str(folder)


def test_apply_converges_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    with ManagerProcess() as manager:
        files = _write(tmp_path)
        dry = _kvcm(manager, "apply", "-f", files, "--dry-run")
        assert (dry.returncode, dry.stderr) == (2, ""), dry
        first = _kvcm(manager, "apply", "-f", files)
        assert (first.returncode, first.stderr) == (2, ""), first
        assert first.stdout.splitlines()[-1] == "2 changes made"
        second = _kvcm(manager, "apply", "-f", files)
        assert (second.returncode, second.stdout.splitlines()[-1]) == (0, "nothing to change"), second

        for enabled, total in ((True, "2Gi"), (False, "2Gi"), (True, "2Gi"), (False, "3Gi"), (True, "2Gi")):
            _write(tmp_path, enabled=enabled, total=total)
            assert _kvcm(manager, "apply", "-f", files).returncode == 2, (enabled, total)
            assert _kvcm(manager, "apply", "-f", files).returncode == 0, (enabled, total)

        groups = {group["name"]: group for group in json.loads(_kvcm(manager, "get", "groups", "-o", "json").stdout)}
        assert groups["live-group"]["quota"] == {"total": "2Gi", "byType": {"nfs": "500M"}}
        storages = {storage["name"]: storage for storage in json.loads(_kvcm(manager, "get", "storages", "-o", "json").stdout)}
        assert storages["live"]["enabled"] is True
        cluster = json.loads(_kvcm(manager, "get", "cluster", "-o", "json").stdout)
        assert cluster["healthy"] is True
        assert cluster["nodeId"] == cluster["leaderNodeId"]
