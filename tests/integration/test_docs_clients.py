"""The programs of docs/clients.md run as printed, and the names in its text exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvcm.client
from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs/clients.md"


def test_the_programs_run_as_printed() -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == 3
    with ManagerProcess() as manager:
        for program in programs:
            for printed, real in (
                ("127.0.0.1:6381", manager.meta_address),
                ("http://127.0.0.1:6382", manager.http_url),
                ("127.0.0.1:6491", manager.admin_address),
            ):
                program = program.replace(printed, real)
            exec(compile(program, str(PAGE), "exec"), {"__name__": "docs"})


def test_every_client_of_the_table_is_exported() -> None:
    table = PAGE.read_text(encoding="utf-8").split("\n\n")[2]
    names = re.findall(r"`(\w+)`", table)
    assert len(names) == 7
    assert set(names) <= set(kvcm.client.__all__)


def test_links_lead_somewhere() -> None:
    for page in (PAGE, PAGE.with_name("tour.md")):
        links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
        assert links
        assert [link for link in links if not (page.parent / link).exists()] == []
