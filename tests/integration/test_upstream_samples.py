"""Every recorded call to the upstream server, replayed in order as one story: same status, fields, types, codes and stable values, but for the intended
differences, which are the rows of docs/compatibility.md that bear a dagger.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcm.protocol import admin_service_pb2, debug_service_pb2, meta_service_pb2
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_story import Story, differing, startup_file

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
GOLDEN: dict[str, Any] = json.loads(Path(ROOT, "tests/goldens/upstream_samples.json").read_text(encoding="utf-8"))
NEW = {*GOLDEN["later_fields"], *GOLDEN["own_fields"]}
WAIT_S = 10.0


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def leads(story: Story) -> bool:
    """Does the node lead, and answer what only a leader answers?"""
    answer = story.ask("admin", "POST", "/api/listStorage", "{}")[2]
    return bool(answer["header"]["status"]["code"] == "OK")


FIRST: dict[str, Callable[[Story], bool]] = {
    "wait until it does not lead": lambda story: not leads(story),
    "wait until it leads": leads,
}


def problems(step: dict[str, Any], story: Story) -> list[str]:
    if "first" in step:
        wait_until(lambda: FIRST[step["first"]](story))
    expected = step.get("here", {})
    method, path = step["do"].split()
    status, kind, reply = story.ask(step["at"], method, path, step.get("send"))
    lines = differing(expected.get("status", step["status"]), status)
    if expected.get("reply") != "<text>":
        lines += differing(expected.get("reply", step.get("reply")), reply, new=NEW, partial=step.get("partial", False))
    if isinstance(reply, dict) and reply:
        lines += [] if kind == "application/json" else [f"the content type is {kind!r}"]
        said = reply["header"]["status"]
        lines += [] if said["code"] == "OK" or said["message"] else ["an error without a sentence"]
    return [f"{step['part']}, {step['case']}: {line}" for line in lines]


def test_the_story_of_the_recorded_calls(tmp_path: Path) -> None:
    root = str(tmp_path)
    settings = {
        "kvcm.startup_config": startup_file(root),
        "kvcm.service.enable_debug_service": "true",
        # As the recording server, which removes whatever it is told to.
        "kvcm.registry.enforce_references": "false",
    }
    with ManagerProcess(settings) as manager:
        debug_url = f"http://127.0.0.1:{manager.endpoint.meta_http_port + 3000}"
        story = Story({"meta": manager.http_url, "admin": manager.admin_http_url, "debug": debug_url}, root)
        assert [line for step in GOLDEN["steps"] for line in problems(step, story)] == []
        assert "Traceback" not in manager.log


def test_intended_differences_are_the_rows_with_a_dagger_each_with_a_reason() -> None:
    text = Path(ROOT, "docs/compatibility.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if line.startswith("| † ")]
    documented = {row[0].removeprefix("† "): row[-1] for row in rows}
    assert documented == {difference["case"]: difference["why"] for difference in GOLDEN["differences"].values()}
    assert all(documented.values())
    assert len(rows) == len(documented)


def test_a_difference_is_claimed_only_where_there_is_one() -> None:
    used = set()
    for step in GOLDEN["steps"]:
        assert ("here" in step) == ("difference" in step)
        if "here" in step:
            used.add(step["difference"])
            reply = step["here"].get("reply", step.get("reply"))
            same = differing(step.get("reply"), reply, new=NEW, partial=step.get("partial", False)) == []
            assert not same or step["here"].get("status", step["status"]) != step["status"]
    assert used == set(GOLDEN["differences"])


def test_fields_beyond_the_recording_are_known_ones() -> None:
    numbers: dict[str, set[int]] = {}
    for module in (meta_service_pb2, admin_service_pb2, debug_service_pb2):
        for message in module.DESCRIPTOR.message_types_by_name.values():
            for field in message.fields:
                numbers.setdefault(field.name, set()).add(field.number)
    assert all(min(numbers[name]) < 1000 for name in GOLDEN["later_fields"])
    assert all(max(numbers[name]) >= 1000 for name in GOLDEN["own_fields"])


def test_the_golden_file_holds_facts_and_no_sentences() -> None:
    for step in GOLDEN["steps"]:
        for message in re.findall(r'"message": "([^"]*)"', json.dumps(step)):
            assert message in ("", "<text>")
    assert len(GOLDEN["steps"]) == 186
