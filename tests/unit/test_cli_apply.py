"""`kvcm apply` and `kvcm get` from the outside: exit codes, what goes to which stream, and that errors are sentences."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcm.cli import main as cli
from kvcm.client import admin_client
from kvcm.client.admin_testing import FakeAdmin
from kvcm.client.admin_types import ClusterInfo, CopyState, NodeCopies, NodeEndpoint, NodeRole, NodeState
from kvcm.client.security import ClientSecurity
from kvcm.common.errors import KvcmError, NotLeader, StorageError
from kvcm.config.model import Instance, LocationSpecInfo, MetaBackendConfig, ModelDeployment

pytestmark = pytest.mark.unit

SAMPLES = str(Path(__file__).parents[2] / "manifests/samples")


class Manager(FakeAdmin):
    """A manager in memory that notes how it was reached."""

    def __init__(self) -> None:
        instance = Instance("i1", "demo", "demo", 16, (LocationSpecInfo("tp0", 1024), LocationSpecInfo("tp1", 512)), ModelDeployment("m\x1b", "fp8"))
        super().__init__(instances=[instance])
        self.reached: list[tuple[Any, float]] = []

    def connect(self, address: Any, *, timeout_s: float, security: ClientSecurity) -> Manager:
        self.reached.append((address, timeout_s))
        return self


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    fake = Manager()
    monkeypatch.setattr(admin_client, "AdminClient", fake.connect)
    monkeypatch.delenv("KVCM_MANAGER", raising=False)
    return fake


def test_exit_codes_tell_whether_anything_changed(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["apply", "-f", SAMPLES, "--dry-run"]) == 2
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "Storage demo-nfs would be created",
        "InstanceGroup demo would be created",
        "2 changes would be made",
    ]
    assert manager.calls == []
    assert cli.main(["apply", "-f", SAMPLES]) == 2
    assert capsys.readouterr().out.splitlines() == ["Storage demo-nfs created", "InstanceGroup demo created", "2 changes made"]
    assert manager.calls == ["add_storage demo-nfs", "create_group demo"]
    for more in ([], ["--dry-run"]):
        assert cli.main(["apply", "-f", SAMPLES, *more]) == 0
        captured = capsys.readouterr()
        assert captured.out.splitlines() == ["Storage demo-nfs unchanged", "InstanceGroup demo unchanged", "nothing to change"]
        assert captured.err == ""
    assert len(manager.calls) == 2


def test_json_goes_to_standard_output_alone(manager: Manager, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.yaml").write_text(
        "apiVersion: kvcm.io/v1alpha1\nkind: KVCacheManager\nmetadata: {name: demo}\n---\n" + Path(SAMPLES, "storage-nfs.yaml").read_text()
    )
    assert cli.main(["apply", "-f", str(tmp_path), "-o", "json"]) == 2
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    step = {"action": "create", "kind": "Storage", "name": "demo-nfs", "changes": []}
    assert document == {"dryRun": False, "changed": 1, "steps": [step], "notices": []}
    assert captured.err.startswith("note: 1 KVCacheManager skipped")


def test_changes_are_shown_field_by_field(manager: Manager, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["apply", "-f", SAMPLES])
    changed = tmp_path / "group.yaml"
    changed.write_text(Path(SAMPLES, "group.yaml").read_text().replace("64Gi", "32Gi").replace("- demo-nfs", "- demo-nfs\n    - demo-nfs2"))
    manager.storages["demo-nfs2"] = replace(manager.storages["demo-nfs"], name="demo-nfs2")
    capsys.readouterr()
    assert cli.main(["apply", "-f", str(changed)]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "InstanceGroup demo updated",
        "    quota.total: 64Gi -> 32Gi",
        "    storages: [demo-nfs] -> [demo-nfs, demo-nfs2]",
        "1 change made",
    ]
    assert manager.groups["demo"].version == 2


def test_standard_input_and_the_address(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(SAMPLES, "storage-nfs.yaml").read_bytes()
    for address, options in (
        ("127.0.0.1:6491", []),
        ("env.example.org:1", []),
        ("[::1]:7", ["--manager", "[::1]:7", "--timeout", "3"]),
    ):
        if address.startswith("env"):
            monkeypatch.setenv("KVCM_MANAGER", address)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        cli.main(["apply", "-f", "-", *options])
        assert manager.reached[-1] == (address, 3.0 if options else 10.0)


def test_bad_files_are_refused_before_a_manager_is_asked(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    bad = Path(__file__).parents[1] / "samples/bad/storage-typo.yaml"
    assert cli.main(["apply", "-f", str(bad), "-f", "nowhere.yaml"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"error: {bad}: spec.nfs.rootPath: is required",
        f"error: {bad}: spec.nfs.rootpath: is not a field that this version knows; did you mean rootPath?",
        "error: nowhere.yaml: cannot be read (No such file or directory)",
    ]
    mooncake = Path(__file__).parents[1] / "samples/good/storage-mooncake.yaml"
    assert cli.main(["apply", "-f", str(mooncake)]) == 1
    assert "mooncake storages are not built in this version" in capsys.readouterr().err
    assert manager.reached == []


def test_a_step_that_fails_is_one_sentence(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    manager.fail_next("create_group", StorageError("the registry is full"))
    assert cli.main(["apply", "-f", SAMPLES]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["Storage demo-nfs created"]
    assert captured.err == "error: could not create InstanceGroup demo (1 changes were made before it): the registry is full\n"


def test_a_manager_that_is_starting_is_waited_for(manager: Manager) -> None:
    manager.fail_next("list_storages", NotLeader("not yet"))
    assert cli.main(["get", "storages"]) == 0
    manager.fail_next("list_storages", NotLeader("not yet"))
    assert cli.main(["get", "storages", "--timeout", "0.01"]) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: COMMAND"),
        (["apply"], "required: -f/--filename"),
        (["apply", "-f", "x", "--timeout", "0"], "seconds above 0"),
        (["apply", "-f", "x", "--timeout", "nan"], "seconds above 0"),
        (["get", "everything"], "invalid choice"),
        (["get", "storages", "--manager", "nowhere"], "--manager must be host:port"),
        (["get", "storages", "--manager", "http://h:1/x"], "--manager must be host:port"),
        (["get", "storages", "--manager", "h:99999"], "--manager must be host:port"),
    ],
)
def test_errors_of_usage_are_1_and_never_look_like_changed(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 1
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err


def test_get_prints_tables_json_and_yaml(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["apply", "-f", SAMPLES])
    capsys.readouterr()

    def get(*arguments: str) -> str:
        assert cli.main(["get", *arguments]) == 0
        return capsys.readouterr().out

    assert get("storages").splitlines() == [
        "NAME      TYPE  ENABLED  PLACE",
        "demo-nfs  nfs   true     /tmp/kvcm-demo/nfs/",
    ]
    groups: list[dict[str, Any]] = json.loads(get("groups", "-o", "json"))
    assert groups[0]["quota"] == {"total": "64Gi"}
    assert yaml.safe_load(get("groups", "-o", "yaml")) == groups
    rows = [re.split(" {2,}", line.rstrip()) for line in get("groups").splitlines()]
    assert rows == [
        ["NAME", "VERSION", "QUOTA", "STORAGES", "PLACEMENT", "MAX-INSTANCES", "METADATA"],
        ["demo", "1", "64Gi", "demo-nfs", "PreferThreeFS", "16", "local"],
    ]
    for kept, shown in (("redis", "redis"), ("async_redis", "redis (WriteBehind)"), ("dummy", "file"), ("strange", "strange")):
        group = manager.groups["demo"]
        indexer = replace(group.cache_config.meta_indexer, backend=MetaBackendConfig(kept))
        manager.groups["demo"] = replace(group, cache_config=replace(group.cache_config, meta_indexer=indexer))
        assert get("groups").splitlines()[1].rstrip().endswith(f"  {shown}")
    table = get("instances").splitlines()
    assert table[1].split() == ["i1", "demo", "m?", "fp8", "16", "tp0,tp1", "1536"]
    assert json.loads(get("instances", "-o", "json"))[0]["specs"] == [{"name": "tp0", "size": 1024}, {"name": "tp1", "size": 512}]
    assert json.loads(get("cluster", "-o", "json"))["leader"] is None
    assert get("cluster").splitlines()[1].split() == ["node-1", "leader", "-", "-", "-", "-", "true", "-", "-", "-", "-", "-"]


def test_get_cluster_lists_every_node(manager: Manager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ends = [NodeEndpoint(f"m-{number}", f"10.0.0.{number}", 1, 2, 3, 4, "") for number in range(3)]
    roles = (NodeRole.LEADER, NodeRole.FOLLOWER, NodeRole.UNKNOWN)
    copies = (None, NodeCopies(CopyState.LOADING, 2, 1, 30, 1500), None)
    nodes = tuple(NodeState(*one) for one in zip(ends, roles, (7, 0, 5), copies, (0, 41_999, None), strict=True))

    async def asked() -> ClusterInfo:
        return ClusterInfo("m-1", "m-0", -1, ends[0], 7, nodes)

    monkeypatch.setattr(manager, "cluster_info", asked)
    assert cli.main(["get", "cluster"]) == 0
    rows = [re.split(" {2,}", line.rstrip()) for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["NODE", "ROLE", "EPOCH", "COPIES", "BEHIND", "SEEN", "HEALTHY", "HOST", "META-RPC", "META-HTTP", "ADMIN-RPC", "ADMIN-HTTP"]
    assert rows[1:] == [
        ["m-0", "leader", "7", "-", "-", "0s", "-", "10.0.0.0", "1", "2", "3", "4"],
        ["m-1", "follower", "0", "loading (2 of 3)", "30 in 1.5s", "41s", "true", "10.0.0.1", "1", "2", "3", "4"],
        ["m-2", "unknown", "5", "-", "-", "-", "-", "10.0.0.2", "1", "2", "3", "4"],
    ]
    assert cli.main(["get", "cluster", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [node["copies"] for node in found["nodes"]] == [None, {"state": "loading", "warm": 2, "filling": 1, "behind": 30, "behindMs": 1500}, None]
    assert [node["toldMsAgo"] for node in found["nodes"]] == [0, 41_999, None]
    assert (found["leaderEpoch"], [node["role"] for node in found["nodes"]]) == (7, ["leader", "follower", "unknown"])


@pytest.mark.parametrize(
    ("text", "reached"),
    [("a:1, b:2", ("a:1", "b:2")), ("dns://kvcm-nodes:6491", "dns://kvcm-nodes:6491"), ("[::1]:7", "[::1]:7")],
)
def test_several_managers_or_where_to_find_them(manager: Manager, text: str, reached: Any) -> None:
    assert cli.main(["get", "storages", "--manager", text]) == 0
    assert manager.reached[-1][0] == reached
    assert cli.main(["get", "storages", "--manager", "a:1,b"]) == 1


def test_an_unexpected_fault_is_a_sentence_too(manager: Manager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def broken() -> list[Any]:
        raise RuntimeError("canary")

    monkeypatch.setattr(manager, "list_storages", broken)
    assert cli.main(["get", "storages"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: kvcm failed unexpectedly (RuntimeError)")
    assert "canary" not in err
    monkeypatch.setenv(cli.TRACEBACK_VARIABLE, "1")
    with pytest.raises(RuntimeError, match="canary"):
        cli.main(["get", "storages"])


def test_every_line_of_an_error_is_marked(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    manager.fail_next("list_storages", KvcmError("first\nsecond"))
    assert cli.main(["get", "storages"]) == 1
    assert capsys.readouterr().err == "error: first\nerror: second\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from kvcm.cli.main import main; code = main(['--help']); "
        "print([name for name in ('grpc', 'pydantic', 'yaml', 'google.protobuf', 'rich') if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "apply" in done.stdout
    assert done.stderr.strip() == "[]"
