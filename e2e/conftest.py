"""What every end-to-end test can ask for: the cluster of the test bed, and what the operator's stories share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# `e2e` is a folder without __init__.py, so that its tests stay plain files; the bed in it is imported from the repository root
sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.cluster.fixture import cel_server, cluster, namespace, node_cluster
from e2e.support.fixtures import a_house, admin_kube, installation, installed, new_house, operator_for, project_on_nodes, resources_server

__all__ = [
    "a_house",
    "admin_kube",
    "cel_server",
    "cluster",
    "installation",
    "installed",
    "namespace",
    "new_house",
    "node_cluster",
    "operator_for",
    "project_on_nodes",
    "resources_server",
]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "e2e: needs a Kubernetes API server; the test bed starts one where the machine allows")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "e2e" in item.path.parts:  # the first one may have to build a Kubernetes
            item.add_marker(pytest.mark.timeout(1800))
