"""What every end-to-end test can ask for: the cluster of the test bed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# `e2e` is a folder without __init__.py, so that its tests stay plain files; the bed in it is imported from the repository root
sys.path.insert(0, str(Path(__file__).parents[1]))

from e2e.cluster.fixture import cluster, namespace, node_cluster

__all__ = ["cluster", "namespace", "node_cluster"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "e2e: needs a Kubernetes API server; the test bed starts one where the machine allows")
