"""Elections as text (tests/scenario/elector/*.txt): every hazard of behaviour 16.5, and faults of coordinators. Words: testing_scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcm.coordination.testing_scenario import play

pytestmark = pytest.mark.scenario

STORIES = sorted((Path(__file__).parent / "elector").glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_story(story: Path) -> None:
    text = story.read_text(encoding="utf-8")
    assert play(text) == text
    assert text.startswith("# "), "a story begins with what it is about"


def test_every_hazard_has_its_story() -> None:
    told = "".join(story.read_text(encoding="utf-8") for story in STORIES)
    for number in ("first", "second", "third", "fourth", "fifth", "sixth", "seventh"):
        assert told.count(f"behaviour 16.5, {number} hazard") == 1


@pytest.mark.parametrize("line", ["dance a", "nodes a colour=red", "nodes a lease=long", "run 3"])
def test_a_mistake_in_a_story_is_said(line: str) -> None:
    with pytest.raises(ValueError, match=r"no such|not a time"):
        play(f"{line}\n")


def test_output_that_is_wrong_or_missing_is_seen() -> None:
    assert play("nodes a\nrun 100ms\n----\na: leads\n") == "nodes a\nrun 100ms\n----\na: campaign\na: promote 1\na: follower -> promoting\n"
    assert play("nodes a\nrun 100ms\n").endswith("a: follower -> promoting\n")
