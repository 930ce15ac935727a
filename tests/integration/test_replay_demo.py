"""`make demo` as a user runs it, on a shorter slice: it ends well, says what it did, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
STAMP = ROOT / ".venv" / ".stamp-dev"


def fresh() -> bool:
    """The demo would install packages into .venv otherwise, which is no matter for a test."""
    inputs = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    return STAMP.exists() and all(STAMP.stat().st_mtime > path.stat().st_mtime for path in inputs)


needs_venv = pytest.mark.skipif(not fresh(), reason="scripts/venv.sh dev has not been run since the dependencies changed")


def start(folder: Path, requests: int) -> subprocess.Popen[str]:
    environ = {**os.environ, "TMPDIR": str(folder), "KVCM_DEMO_REQUESTS": str(requests)}
    return subprocess.Popen(
        [str(ROOT / "scripts" / "demo.sh")],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@needs_venv
def test_the_demo_runs_from_start_to_clean_stop(tmp_path: Path) -> None:
    demo = start(tmp_path, 60)
    try:
        shown, _ = demo.communicate(timeout=120)
    finally:
        _end(demo)

    assert demo.returncode == 0, shown
    for part in ("2 changes made", "nothing to change", "demo-nfs", "hit blocks", "CLS_SERVING", "make demo took"):
        assert part in shown
    assert list(tmp_path.iterdir()) == []


@needs_venv
def test_a_stopped_demo_stops_its_manager_and_removes_its_folder(tmp_path: Path) -> None:
    demo = start(tmp_path, 100_000)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("kvcm-demo-*/nfs/*/*/*")):
            assert demo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(demo.pid, signal.SIGINT)
        shown, _ = demo.communicate(timeout=60)
    finally:
        _end(demo)

    assert demo.returncode != 0
    assert "make demo took" not in shown
    assert list(tmp_path.iterdir()) == []


def _end(demo: subprocess.Popen[str]) -> None:
    """The whole process group, so that a failing test leaves no manager behind."""
    if demo.poll() is None:
        os.killpg(demo.pid, signal.SIGKILL)
        demo.wait()
