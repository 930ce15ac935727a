"""The example of the client SDK works against a real manager process, twice: the second run finds its blocks stored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "write_and_read.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=_EXAMPLE.parents[1], env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_EXAMPLE.parents[1])}


def test_the_example_writes_reads_and_verifies() -> None:
    testing = pytest.importorskip("kvcm.service.testing", reason="the manager process helper is not installed")
    with testing.ManagerProcess() as manager:
        first = _run("--address", manager.meta_address)
        assert (first.returncode, first.stderr) == (0, "")
        assert first.stdout == "wrote 4 blocks, read 4 blocks of 65536 bytes, all equal\n"
        second = _run("--address", manager.meta_address)
        assert second.stdout == "wrote 0 blocks, read 4 blocks of 65536 bytes, all equal\n"
        refused = _run("--address", manager.meta_address, "--group", "no-such-group", "--instance", "other")
        assert refused.returncode == 1
        assert "no-such-group" in refused.stderr


def test_the_example_says_plainly_that_nobody_answers() -> None:
    done = _run("--address", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no manager could be reached")
    assert "Traceback" not in done.stderr
