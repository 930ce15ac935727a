"""How the test bed writes down what it starts, ends exactly that, and refuses to run twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.down import down
from e2e.cluster.handle import busy, running
from e2e.cluster.journal import Identity, Journal, identity
from e2e.cluster.process import children, free_ports
from e2e.cluster.waiting import eventually

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[1]


def _python(script: str, *args: str, code: int = 0) -> None:
    """Run a script in a process of its own: what it starts outlives it, as with the real command line."""
    done = subprocess.run([sys.executable, "-c", script, *args], cwd=_ROOT, timeout=60, check=False)
    assert done.returncode == code


def test_a_torn_last_line_of_the_journal_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add("link", "one")
    with journal.path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "link", "na')
    assert [entry["name"] for entry in journal.entries("link")] == ["one"]


def test_a_pid_that_now_belongs_to_another_process_is_spared(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        found = identity(stranger.pid)
        assert found is not None
        Journal(tmp_path).add("process", "etcd", pid=found.pid, start=found.start - 1, boot=found.boot)
        assert down(tmp_path, purge=True) == []
        assert stranger.poll() is None
        stranger.kill()


def test_folders_over_which_the_nodes_of_another_cluster_mount_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder, place = tmp_path / "run", tmp_path / "place"
    for folder in (run_folder, place):
        folder.mkdir()
    Journal(run_folder).add("folder", str(place))
    monkeypatch.setattr("e2e.cluster.down.LINK", "lo")  # a link that is there and not ours
    assert down(run_folder, purge=True) == []
    assert place.is_dir()


_START = """
import sys; from pathlib import Path
from e2e.cluster.journal import Journal
from e2e.cluster.process import Starter
Starter(Journal(Path(sys.argv[1]))).start("part", ["sleep", "600"])
"""
_DIE_BEFORE_THE_RECORD = """
import os, sys; from pathlib import Path
from e2e.cluster.journal import Journal
from e2e.cluster.process import Starter
def die(self, name, pid):
    Path(sys.argv[1], "pid").write_text(str(pid))
    os._exit(9)
Journal.add_process = die
Starter(Journal(Path(sys.argv[1]))).start("part", ["touch", sys.argv[1] + "/ran"])
"""


def test_what_was_started_is_ended_and_twice_is_as_once(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    _python(_START, str(run_folder))
    pid = Journal(run_folder).pid_of("part")
    assert down(run_folder, purge=False) == ["process part"]
    assert identity(pid) is None
    assert down(run_folder, purge=False) == []
    assert [path.name for path in run_folder.iterdir()] == ["log"]
    assert down(run_folder, purge=True) == []
    assert not run_folder.exists()


def test_nothing_runs_if_the_starter_is_killed_before_it_could_write_it_down(tmp_path: Path) -> None:
    _python(_DIE_BEFORE_THE_RECORD, str(tmp_path), code=9)
    pid = int((tmp_path / "pid").read_text(encoding="ascii"))
    assert eventually(lambda: identity(pid) is None, "the part has ended")
    assert not (tmp_path / "ran").exists()


def test_folders_made_for_mounts_go_only_when_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.cluster.down.LINK", "no-such-link")  # the cluster of this run may have nodes
    run_folder, empty, used = tmp_path / "run", tmp_path / "empty", tmp_path / "used"
    for folder in (run_folder, empty, used):
        folder.mkdir()
    (used / "of-someone").touch()
    for folder in (empty, used):
        Journal(run_folder).add("folder", str(folder))
    assert down(run_folder, purge=True) == [f"folder {empty}"]
    assert used.is_dir()


def test_a_second_cluster_is_refused_with_a_sentence(tmp_path: Path) -> None:
    assert busy(tmp_path) == ""
    _python(_START, str(tmp_path))
    try:
        journal = Journal(tmp_path)
        assert busy(tmp_path) == ""  # a part without its maker: left over, and to be cleared away
        maker = identity(os.getpid())
        assert maker is not None
        journal.add("maker", "up", pid=maker.pid, start=maker.start, boot=maker.boot)
        assert "is being started" in busy(tmp_path)
        facts: dict[str, object] = {"level": "control", "kubeconfig": "k", "version": [1, 20], "kubectl_path": "k", "helm_path": "h"}
        facts |= {"controllers": True, "nodes": 0, "ctr": None, "owner": None}
        (tmp_path / "cluster.json").write_text(json.dumps(facts), encoding="utf-8")
        assert "is up already" in busy(tmp_path)
        found = running(tmp_path)
        assert found is not None
        assert found.version == (1, 20)
        gone = Identity(maker.pid, maker.start - 1, maker.boot)
        facts["owner"] = {"pid": gone.pid, "start": gone.start, "boot": gone.boot}
        (tmp_path / "cluster.json").write_text(json.dumps(facts), encoding="utf-8")
        assert busy(tmp_path) == ""  # its test run has ended, so it may be cleared away
    finally:
        down(tmp_path, purge=True)
    assert running(tmp_path) is None


def test_children_and_free_ports_tell_the_truth() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in children(os.getpid())
        child.kill()
    ports = free_ports("127.0.0.1", 3, 28998)
    assert len(set(ports)) == 3
    assert all(21000 <= port < 29000 for port in ports)
