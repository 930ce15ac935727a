"""Fixtures of the operator's stories. They skip by name where there is no cluster, or where the cluster is not to be touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import yaml

from e2e.cluster.cache import Cache
from e2e.cluster.cel import CelServer
from e2e.cluster.handle import Cluster
from e2e.cluster.project_image import project_image
from e2e.cluster.settings import from_environment
from e2e.support.house import House, house
from e2e.support.installation import ROOT, Installation
from e2e.support.kube import Kube
from e2e.support.operator_process import OperatorProcess
from kvcm.resources.schema import KINDS

PROJECT_IMAGE = "kvcm:dev"
"""As the manifests name it."""
_CRDS = ROOT / "crds"
NewHouse = Callable[..., AbstractContextManager[House]]
NewOperator = Callable[..., OperatorProcess]


@pytest.fixture(scope="session")
def installation(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """What may be installed on the cluster; nothing is before `ensure`. Removed after the last test."""
    found = Installation(cluster, tmp_path_factory.mktemp("installation"))
    if found.foreign():
        pytest.skip("the cluster has the kinds of kvcm.io already; stories that install and remove them would touch what is not theirs")
    try:
        yield found
    finally:
        found.remove()


@pytest.fixture(scope="session")
def admin_kube(cluster: Cluster) -> Iterator[Kube]:
    """The administrator's eyes and hands."""
    kube = Kube(cluster.kubeconfig)
    yield kube
    kube.close()


@pytest.fixture(scope="session")
def project_on_nodes(node_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image that the manifests name, made from this tree and given to every node; its name."""
    if node_cluster.run is None:
        pytest.skip("an image can be given only to nodes that the test bed started itself")
    archive = tmp_path_factory.mktemp("image") / "kvcm.tar"
    project_image(Cache(from_environment().cache, lambda _: None), archive, PROJECT_IMAGE, [ROOT], ["kvcm"], extras=["operator", "redis"])
    node_cluster.load_image(archive)
    archive.unlink()
    return PROJECT_IMAGE


@pytest.fixture
def installed(installation: Installation) -> Installation:
    """The kinds and the operator's rights are on the cluster."""
    installation.ensure()
    return installation


@pytest.fixture
def new_house(installed: Installation, cluster: Cluster, admin_kube: Kube, tmp_path: Path) -> NewHouse:
    """`with new_house() as house:` as often as wanted; `namespace` and `settings` as for `house`."""
    return partial(house, cluster, admin_kube, tmp_path)


@pytest.fixture
def a_house(new_house: NewHouse) -> Iterator[House]:
    with new_house() as found:
        yield found


@pytest.fixture
def operator_for(installed: Installation) -> NewOperator:
    """`with operator_for(house, ...) as operator:` an operator that knows the managers of these houses; further arguments as for the process."""

    def made(*houses: House, **arguments: object) -> OperatorProcess:
        overrides = {name: address for one in houses for name, address in one.address().items()}
        return OperatorProcess(installed.kubeconfig, overrides, **arguments)  # type: ignore[arg-type]  # handed through

    return made


@pytest.fixture(scope="session")
def resources_server(cel_server: CelServer) -> CelServer:
    """The CRD server with the CRDs of crds/ in it."""
    for info in KINDS:
        cel_server.install(yaml.safe_load((_CRDS / info.file_name).read_text(encoding="utf-8")))
    return cel_server
