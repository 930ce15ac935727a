"""What resource files say, seen at a manager process: the shipped samples converge, and fields do what their descriptions promise (design D10)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kvcm.cli import main as cli
from kvcm.client import ClientConfig, ClientError, MetaClient
from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration

SAMPLES = Path(__file__).parents[2] / "manifests/samples"
HEAD = "apiVersion: kvcm.io/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  managerRef: {{name: m}}\n  "
SIZE = 1000


@pytest.fixture(scope="module")
def manager() -> Iterator[ManagerProcess]:
    with ManagerProcess() as running:
        yield running


def _apply(manager: ManagerProcess, *paths: Path) -> tuple[int, str]:
    options = [part for path in paths for part in ("-f", str(path))]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = cli.main(["apply", *options, "--manager", manager.admin_address])
    return code, shown.getvalue()


def _file(folder: Path, kind: str, name: str, spec: str) -> Path:
    path = folder / f"{kind}-{name}.yaml".lower()
    path.write_text(HEAD.format(kind=kind, name=name) + spec + "\n")
    return path


def _connect(manager: ManagerProcess, group: str, instance: str) -> MetaClient:
    document = {
        "instance_group": group,
        "instance_id": instance,
        "block_size": 16,
        "address": [manager.meta_address],
        "location_spec_infos": {"tp0": SIZE},
        "model_deployment": {"model_name": "m", "dtype": "bf16"},
        "meta_channel_config": {"call_timeout": 10_000, "connection_timeout": 10_000},
    }
    return MetaClient.connect(ClientConfig.parse(document))


def test_the_shipped_samples_converge(manager: ManagerProcess, tmp_path: Path) -> None:
    files = []
    for sample in sorted(SAMPLES.glob("*.yaml")):
        text = sample.read_text().replace("/tmp/kvcm-demo/", f"{tmp_path}/")
        (tmp_path / sample.name).write_text(text)
        files.append(text)
    assert any(str(tmp_path) in text for text in files)
    code, output = _apply(manager, tmp_path)
    assert (code, output.splitlines()[-1]) == (2, "2 changes made"), output
    code, output = _apply(manager, tmp_path)
    assert (code, output.splitlines()[-1]) == (0, "nothing to change"), output


def test_packing_and_early_files_and_the_metadata_file(manager: ManagerProcess, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    spec = f"threeFS: {{mountpoint: {tmp_path}/mnt, rootDir: kv, keyCountPerFile: 2, touchFileWhenCreate: true}}"
    storage = _file(tmp_path, "Storage", "packed", spec)
    spec = f"storages: [packed]\n  quota: {{total: 1Gi}}\n  metadataIndex: {{backend: {{type: file, uri: 'file://{tmp_path}/meta/g'}}}}"
    group = _file(tmp_path, "InstanceGroup", "packed", spec)
    assert _apply(manager, storage, group)[0] == 2
    with _connect(manager, "packed", "i-packed") as client:
        uris = [urlsplit(location.uri("tp0")) for location in client.start_write([1, 2, 3, 4], write_timeout_seconds=30).locations]
    assert [uri.query for uri in uris] == [f"blkid={slot}&size={SIZE}" for slot in (0, 1, 0, 1)]
    assert len({uri.path for uri in uris}) == 2
    assert all(Path(uri.path).is_file() for uri in uris)
    assert (tmp_path / "meta" / "g.i-packed").stat().st_size > 0


def test_limits_of_instances_keys_and_kinds_and_a_disabled_storage(manager: ManagerProcess, tmp_path: Path) -> None:
    nfs = f"nfs: {{rootPath: {tmp_path}/nfs}}"
    storage = _file(tmp_path, "Storage", "small", nfs)
    limits = f"maxInstances: 1\n  metadataIndex: {{maxKeys: 5}}\n  quota: {{total: 1Gi, byType: {{nfs: {3 * SIZE}}}}}"
    group = _file(tmp_path, "InstanceGroup", "small", f"storages: [small]\n  {limits}")
    assert _apply(manager, storage, group)[0] == 2
    with _connect(manager, "small", "i-small") as client:
        with pytest.raises(ClientError, match="maximum of 1 instances"):
            _connect(manager, "small", "i-small-2").close()
        with pytest.raises(ClientError, match="type quotas of group 'small' are full"):
            client.start_write([1, 2, 3, 4], write_timeout_seconds=30)
        client.start_write([1, 2, 3], write_timeout_seconds=30)
        _file(tmp_path, "InstanceGroup", "small", f"storages: [small]\n  {limits}".replace(f"nfs: {3 * SIZE}", "nfs: 1Gi"))
        assert _apply(manager, group)[0] == 2
        with pytest.raises(ClientError, match="holds 3 of 5 blocks"):
            client.start_write([4, 5, 6], write_timeout_seconds=30)
        _file(tmp_path, "Storage", "small", f"{nfs}\n  enabled: false")
        assert _apply(manager, storage)[0] == 2
        with pytest.raises(ClientError, match="no storage of group 'small' is available"):
            client.start_write([4], write_timeout_seconds=30)
        _file(tmp_path, "Storage", "small", nfs)
        assert _apply(manager, storage)[0] == 2
        assert len(client.start_write([4], write_timeout_seconds=30).locations) == 1


def test_placement_names_the_kind(manager: ManagerProcess, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    storages = [
        _file(tmp_path, "Storage", "first-nfs", f"nfs: {{rootPath: {tmp_path}/nfs}}"),
        _file(tmp_path, "Storage", "then-3fs", f"threeFS: {{mountpoint: {tmp_path}/mnt, rootDir: kv}}"),
    ]
    shared = "storages: [first-nfs, then-3fs]\n  quota: {total: 1Gi}\n  placement: {preference: "
    groups = [
        _file(tmp_path, "InstanceGroup", f"p{at}", f"{shared}{word}}}") for at, word in enumerate(("PreferThreeFS", "PreferVcnsThreeFS", "AlwaysVcnsThreeFS"))
    ]
    assert _apply(manager, *storages, *groups)[0] == 2
    schemes = []
    for at in range(2):
        with _connect(manager, f"p{at}", f"i-p{at}") as client:
            schemes.append(urlsplit(client.start_write([1], write_timeout_seconds=30).locations[0].uri("tp0")).scheme)
    assert schemes == ["hf3fs", "file"]
    with _connect(manager, "p2", "i-p2") as client, pytest.raises(ClientError, match="insists on storage of type 'vcns_hf3fs'"):
        client.start_write([1], write_timeout_seconds=30)
