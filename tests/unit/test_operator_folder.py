"""The folder `operator/` must never become a package that shadows the standard library's `operator`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["operator", "tests/operator"])
def test_there_is_no_init_file(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_a_fresh_interpreter_in_the_root_still_finds_the_standard_library() -> None:
    # -S: no site packages, so nothing has loaded the real module before the root is searched.
    code = "import sys; sys.path.insert(0, '.'); import collections, operator; print(operator.add(1, 2))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr
