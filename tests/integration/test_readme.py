"""The README's program runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def test_the_program_of_the_readme_runs_as_printed() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    with ManagerProcess() as manager:
        # The built-in group stands in for the sample one; everything else is as printed.
        adapted = code.replace("127.0.0.1:6381", manager.meta_address).replace('"demo"', '"default"')
        assert adapted != code
        exec(compile(adapted, "README.md", "exec"), {})


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
