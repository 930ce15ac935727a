"""The cluster as pytest fixtures: `cluster` for the whole run, `namespace` for one test, `node_cluster` for tests that need pods.

A cluster that is up already is used and left up; otherwise one is started for this run, by a process of its own, and taken down after it.
If this run is killed, the next one sees that its owner has gone and clears it away. Tests skip, with the machine's own sentence, where the
level they need is not to be had; a cluster that should start and does not is an error, never a skip.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import clients, crd_server
from e2e.cluster.cache import Cache
from e2e.cluster.cel import CelServer, build, cel_server_of
from e2e.cluster.command import run
from e2e.cluster.detect import Ability, detect
from e2e.cluster.errors import BedError
from e2e.cluster.handle import Cluster, busy, running
from e2e.cluster.settings import LEVELS, Settings, from_environment

_ROOT = Path(__file__).parents[2]
_UP_TIMEOUT_S = 60 * 60.0
_DOWN_TIMEOUT_S = 5 * 60.0


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running cluster at the highest level that is wanted and possible."""
    settings = from_environment()
    if settings.kubeconfig is not None:
        yield external(settings, Cache(settings.cache, lambda _: None))
        return
    found = running(settings.run)
    if found is not None and found.owner is None and settings.level != "none":
        yield found
        return
    ability = detect(settings, Cache(settings.cache, lambda _: None))
    if ability.level == "none":
        pytest.skip(f"no Kubernetes API server: {ability.reason}")
    taken = busy(settings.run)
    if taken:
        pytest.fail(taken)
    _call_bed(request, "up", "--owner", str(os.getpid()), timeout=_UP_TIMEOUT_S)
    try:
        found = running(settings.run)
        if found is None:
            pytest.fail(f"the test cluster has ended by itself; its logs are in {settings.run / 'log'}")
        yield found
    finally:
        _call_bed(request, "down", timeout=_DOWN_TIMEOUT_S)


@pytest.fixture(scope="session")
def node_cluster(cluster: Cluster) -> Cluster:
    """`cluster`, for a test that needs pods to run. Skips where no nodes are."""
    if cluster.level != "node":
        pytest.skip(f"pods cannot run: {_why_no_nodes(cluster)}")
    return cluster


@pytest.fixture(scope="session")
def cel_server() -> Iterator[CelServer]:
    """A CRD server of a current Kubernetes, alone, with nothing in it. Skips where none can be built, also when Debian's newest suite breaks the build."""
    settings = from_environment()
    cache = Cache(settings.cache, _say)
    reason = "KVCM_E2E_LEVEL says none" if settings.level == "none" else crd_server.why_not(cache)
    if reason:
        pytest.skip(f"no server with CEL, because {reason}")
    try:
        programs = build(cache)
    except BedError as error:
        pytest.skip(f"no server with CEL, because it could not be built: {error}")
    with cel_server_of(settings, cache, programs) as server:
        yield server


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace, in which pods may be made at once. It is deleted after the test, without waiting."""
    name = f"e2e-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    try:
        if cluster.controllers:
            cluster.kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", "--timeout=60s", timeout=70)
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false", check=False)


def external(settings: Settings, cache: Cache) -> Cluster:
    """The cluster of KVCM_E2E_KUBECONFIG. BedError if it does not answer. Its nodes count if one of them is Ready."""
    kubeconfig = settings.kubeconfig
    if kubeconfig is None or not kubeconfig.is_file():
        raise BedError(f"KVCM_E2E_KUBECONFIG names {kubeconfig}, which is not a file")
    kubectl, helm = shutil.which("kubectl"), shutil.which("helm")
    if not kubectl or not helm:
        tools = cache.obtain(clients.NAME, clients.key(), clients.make)
        kubectl, helm = str(tools / "kubectl"), str(tools / "helm")
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    version = json.loads(run([kubectl, "get", "--raw", "/version"], timeout=60, env=env))
    nodes = json.loads(run([kubectl, "get", "nodes", "-o", "json"], timeout=60, env=env))["items"]
    ready = sum(any(condition["type"] == "Ready" and condition["status"] == "True" for condition in node["status"].get("conditions", [])) for node in nodes)
    level = "node" if ready else "control"
    return Cluster(
        level=level if LEVELS.index(level) <= LEVELS.index(settings.level) else settings.level,
        kubeconfig=kubeconfig,
        version=(int(version["major"]), int(version["minor"].rstrip("+"))),
        kubectl_path=Path(kubectl),
        helm_path=Path(helm),
        controllers=bool(run([kubectl, "get", "serviceaccount", "default", "-n", "default", "--ignore-not-found"], timeout=60, env=env)),
        nodes=ready,
    )


def _say(sentence: str) -> None:
    sys.__stderr__ and sys.__stderr__.write(f"{sentence}\n")


def _why_no_nodes(cluster: Cluster) -> str:
    if cluster.run is None:
        return "the cluster of KVCM_E2E_KUBECONFIG has no node that is Ready"
    settings = from_environment()
    ability: Ability = detect(settings, Cache(settings.cache, lambda _: None))
    if ability.level == "node":
        return "a cluster without nodes is up; take it down with `make cluster-down` and the tests start one with nodes"
    return ability.reason


def _call_bed(request: pytest.FixtureRequest, *words: str, timeout: float) -> None:
    """Run the bed's command line, its words shown as they come: the first build takes minutes, and silence would look like a hang."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    argv = [sys.executable, "-m", "e2e.cluster", *words]
    if capture is None:
        done = subprocess.run(argv, cwd=_ROOT, timeout=timeout, check=False)
    else:
        with capture.global_and_fixture_disabled():
            sys.stdout.write("\n")
            sys.stdout.flush()
            done = subprocess.run(argv, cwd=_ROOT, timeout=timeout, check=False)
    if done.returncode != 0:
        raise BedError(f"the test bed could not do `{' '.join(words)}`; it has said why above")
