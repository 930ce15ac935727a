"""docs/tour.md runs as printed against a real manager, shows every RPC over HTTP and over gRPC, and its replies are as it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvcm.protocol import admin_service_pb2, debug_service_pb2, meta_service_pb2
from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs/tour.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = "--- end of block ---"


@dataclass
class Block:
    """`code`: of every reply. `shown`: what the last reply must contain."""

    script: str
    code: str = "OK"
    shown: Any = None
    replies: list[Any] = field(default_factory=list)


def _page() -> tuple[dict[str, str], list[Block]]:
    """(settings of the manager, blocks)"""
    settings: dict[str, str] = {}
    blocks: list[Block] = []
    for language, text in _FENCE.findall(PAGE.read_text(encoding="utf-8")):
        if language == "console":
            settings |= dict(pair.split("=", 1) for pair in re.findall(r"-e (\S+)", text))
        elif language == "sh":
            answers = re.match(r"# answers (\w+)\n", text)
            blocks.append(Block(text, answers[1] if answers else "OK"))
        elif language == "json":
            blocks[-1].shown = json.loads(text)
        else:
            raise AssertionError(f"the tour has a block of an unknown language: {language}")
    return settings, blocks


def test_every_rpc_is_shown_over_http_and_over_grpc() -> None:
    script = "\n".join(block.script for block in _page()[1])
    for variable, name, module in (("META", "meta", meta_service_pb2), ("ADMIN", "admin", admin_service_pb2), ("DEBUG", "debug", debug_service_pb2)):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                path = f"${variable}/api/{method.name[0].lower()}{method.name[1:]} "
                assert path in script, f"{path} is missing"
                assert re.search(rf"kvcm call (--force )?{name}/{method.name}\b", script), f"kvcm call {name}/{method.name} is missing"


def test_no_password_stands_on_a_command_line() -> None:
    for block in _page()[1]:
        assert not re.search(r"^(curl|kvcm).*password", block.script, re.MULTILINE)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed (apt-get install curl)")
def test_the_tour_runs_as_printed(tmp_path: Path) -> None:
    settings, blocks = _page()
    with ManagerProcess(settings) as manager:
        _run(blocks, manager, tmp_path)
        assert "Traceback" not in manager.log
    for block in blocks:
        for reply in block.replies:
            if "header" in reply:
                assert reply["header"]["status"]["code"] == block.code, (block.script, reply)
        if block.shown is not None:
            _contains(block.replies[-1], block.shown, block.script)
    assert sum(len(block.replies) for block in blocks) > 90


def _run(blocks: list[Block], manager: ManagerProcess, folder: Path) -> None:
    script = "set -euo pipefail\n" + "".join(f"{block.script}\necho; echo '{_MARK}'\n" for block in blocks)
    for printed, real in (
        ("http://127.0.0.1:6382", manager.http_url),
        ("http://127.0.0.1:6492", manager.admin_http_url),
        ("http://127.0.0.1:9382", manager.debug_http_url),
        ("127.0.0.1:6381", manager.meta_address),
        ("127.0.0.1:6491", manager.admin_address),
        ("/tmp/kvcm-tour", str(folder)),
    ):
        assert printed in script
        script = script.replace(printed, real)
    # The command as it is installed beside the interpreter that runs the tests.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=240, check=False, env=os.environ | {"PATH": path})
    outputs = done.stdout.split(_MARK)
    assert done.returncode == 0, f"{blocks[len(outputs) - 1].script}\n{outputs[-1]}\n{done.stderr}"
    for block, text in zip(blocks, outputs, strict=False):
        block.replies = _documents(text)


def _documents(text: str) -> list[Any]:
    """JSON documents one after another, with or without space between them."""
    found: list[Any] = []
    rest = text.strip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found


def _contains(actual: Any, shown: Any, where: str) -> None:
    """Every field that is shown is there with the shown value; lists have the shown length."""
    if isinstance(shown, dict):
        for name, value in shown.items():
            assert name in actual, (where, name)
            _contains(actual[name], value, where)
    elif isinstance(shown, list):
        assert len(actual) == len(shown), where
        for one, other in zip(actual, shown, strict=True):
            _contains(one, other, where)
    else:
        assert actual == shown, where
