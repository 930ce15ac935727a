"""A real process that is stopped or killed in its turn at the coordination folder, lock in hand: the others go on, and it changes nothing afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvcm.common.clock import SystemClock
from kvcm.common.testing_waiting import eventually
from kvcm.coordination.file_lease import LeaseFolder, this_clock
from kvcm.coordination.port import Leader

pytestmark = pytest.mark.integration

LEASE_US = 300_000
# Leads, says so, and stops itself just before what its renewal has prepared becomes the lease.
CHILD = f"""
import os, signal, sys
from pathlib import Path
from kvcm.common.clock import SystemClock
from kvcm.common.errors import StorageError
from kvcm.coordination.file_lease import LeaseFolder, this_clock

node = LeaseFolder(Path(sys.argv[1]), SystemClock(), 0, this_clock())
assert node.campaign("child", {LEASE_US}) == 1
real = os.replace

def replace(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGSTOP)
    real(*args, **kwargs)

os.replace = replace
try:
    print("renewed", node.keep_alive("child", 1, {LEASE_US}), flush=True)
except StorageError as error:
    print(error.message, flush=True)
"""


@contextmanager
def stopped_in_its_turn(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE) as child:
        try:
            assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
            yield child
        finally:
            child.kill()


def node_of(folder: Path) -> LeaseFolder:
    return LeaseFolder(folder, SystemClock(), 0, this_clock())


def test_a_leader_that_is_stopped_in_its_turn_is_succeeded_and_its_renewal_never_lands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = node_of(tmp_path)
    with stopped_in_its_turn(tmp_path) as child:
        other.put_node("other", "{}")
        eventually(lambda: other.campaign("other", 600_000_000) == 2, "the other leads")
        child.send_signal(signal.SIGCONT)
        assert child.stdout is not None
        assert b"did not run for a while" in child.stdout.readline()
    assert other.observe() == Leader("other", 2)
    assert other.keep_alive("other", 2, LEASE_US)
    assert [record.getMessage() for record in caplog.records] == [
        f"turn_passed_over lock=kvcm_leader.lock process={child.pid}: it keeps the lock and does not go on"
    ], "said once: those who come later queue at a new lock"


def test_a_leader_that_is_killed_in_its_turn_leaves_the_folder_of_use_and_clean(tmp_path: Path) -> None:
    with stopped_in_its_turn(tmp_path) as child:
        child.kill()
        child.wait()
    other = node_of(tmp_path)
    eventually(lambda: other.campaign("other", LEASE_US) == 2, "the other leads")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kvcm_leader.epoch", "kvcm_leader.lease", "kvcm_leader.lock", "kvcm_leader.turn"]
    assert not list((tmp_path / "kvcm_leader.turn").iterdir())


def test_what_is_left_of_turns_that_never_began_is_swept(tmp_path: Path) -> None:
    old, fresh = tmp_path / "kvcm_leader.turn.1-0", tmp_path / "kvcm_leader.turn.2-0"
    for folder in (old, fresh):
        folder.mkdir()
    os.utime(old, (0, 0))
    node_of(tmp_path).put_node("a", "{}")
    assert not old.exists()
    assert fresh.exists()
