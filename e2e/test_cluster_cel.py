"""The CRD server beside the bed: one at a time in a run folder, and nothing of it stays, even when the test run is killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.cluster import crd_server
from e2e.cluster.cache import Cache
from e2e.cluster.cel import CelServer, build, cel_server_of, clear_left_over, run_folder
from e2e.cluster.errors import BedError
from e2e.cluster.journal import Journal
from e2e.cluster.settings import Settings, from_environment

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[1]
_START_AND_HANG = """
import sys, time
from e2e.cluster.cache import Cache
from e2e.cluster.cel import build, cel_server_of
from e2e.cluster.settings import from_environment
settings = from_environment()
cache = Cache(settings.cache, lambda _: None)
with cel_server_of(settings, cache, build(cache)):
    print("ready", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def own_settings() -> Iterator[Settings]:
    """A run folder of this test's own, with a short path, because sockets could lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="kvcm-e2e-"))
    try:
        yield replace(from_environment(), run=folder / "r")
    finally:
        shutil.rmtree(folder)


def test_a_killed_test_run_leaves_nothing_that_down_does_not_end(cel_server: CelServer, own_settings: Settings) -> None:
    assert cel_server.version.startswith("v1.")  # it is in the cache, so that the child builds nothing
    cache = Cache(own_settings.cache, lambda _: None)
    env = {**os.environ, "KVCM_E2E_RUN": str(own_settings.run)}
    with subprocess.Popen([sys.executable, "-c", _START_AND_HANG], cwd=_ROOT, env=env, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            assert clear_left_over(own_settings, cache, purge=True) == []  # its user lives
            with pytest.raises(BedError, match="another test run uses"), cel_server_of(own_settings, cache, build(cache)):
                pass
        finally:
            child.kill()
    started = Journal(run_folder(own_settings)).processes()
    assert [name for name, process in started if process.alive()] == ["etcd", crd_server.NAME]
    assert sorted(clear_left_over(own_settings, cache, purge=True)) == [f"process {crd_server.NAME}", "process etcd"]
    assert not any(process.alive() for _, process in started)
    assert not run_folder(own_settings).exists()
