"""What the final checks of a replay call a contradiction, and what the command refuses before it starts anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcm.cli.main import main
from kvcm.client.replay import Audit, ReplayReport, Usage, problems

pytestmark = pytest.mark.unit


def report(**changes: int) -> ReplayReport:
    made = ReplayReport(512, 64, requests=3, total_blocks=10, hit_blocks=4, possible_hit_blocks=4, written_blocks=6, bytes_written=384)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


GOOD = Audit({"CLS_SERVING": 6}, 384)


def test_numbers_that_agree_are_no_problem() -> None:
    assert problems(report(), GOOD, Usage(0, 384), fresh=True, sequential=True) == []
    assert problems(report(), GOOD, None, fresh=False, sequential=True) == []
    # Others' blocks were there before.
    assert problems(report(hit_blocks=9), GOOD, Usage(1000, 1384), fresh=False, sequential=True) == []


@pytest.mark.parametrize("state", ["CLS_WRITING", "CLS_DELETING"])
def test_blocks_that_do_not_settle_are_a_problem(state: str) -> None:
    found = problems(report(), Audit({"CLS_SERVING": 5, state: 1}, 320), None, fresh=False, sequential=False)
    assert found == ["1 blocks are neither served nor gone although every write was finished"]


def test_a_wrong_usage_is_a_problem() -> None:
    assert problems(report(), GOOD, Usage(64, 384), fresh=False, sequential=True) == ["384 bytes were written, but the reported usage grew by 320"]
    assert problems(report(bytes_written=400), GOOD, Usage(0, 400), fresh=False, sequential=True) == [
        "the reported usage is 400 bytes, but the served blocks have 384"
    ]


def test_an_empty_unlimited_manager_must_hit_exactly_what_is_possible() -> None:
    fewer = report(hit_blocks=3)
    assert problems(fewer, GOOD, None, fresh=True, sequential=True) == ["3 blocks were hits, but an unlimited cache has 4 in this trace"]
    assert problems(fewer, GOOD, None, fresh=True, sequential=False) == []
    assert problems(fewer, GOOD, None, fresh=False, sequential=True) == []


def test_an_unlimited_manager_must_neither_lose_nor_refuse() -> None:
    found = problems(report(refused_blocks=2), Audit({"CLS_SERVING": 5, "CLS_NOT_FOUND": 1}, 320), None, fresh=True, sequential=True)
    assert found == ["1 blocks that were written are gone", "the write of 2 blocks was refused although there is no limit"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("nothing.jsonl",), "cannot be opened"),
        (("conversation", "--manager", "nonsense"), "host:port"),
        (("conversation", "--metrics-url", "http://127.0.0.1:1/metrics"), "--metrics-url belongs to --manager"),
        (("conversation", "--manager", "127.0.0.1:1", "--work-dir", "."), "--work-dir is for a manager of its own"),
        (("conversation", "--work-dir", "no/such/folder"), "is not a folder"),
        (("conversation", "--json", "no/such/folder/x.json"), "cannot be written"),
        (("conversation", "--limit", "0"), "must be a whole number from 1"),
        (("conversation", "--block-bytes", "1e3"), "must be a whole number from 1"),
        (("conversation", "--concurrency", "65"), "must be a whole number from 1 to 64"),
        (("conversation", "--verify", "some"), "invalid choice"),
    ],
)
def test_impossible_options_are_one_sentence_and_exit_code_1(options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *options]) == 1
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_a_bad_line_is_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.jsonl"
    good = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
    trace.write_text(f"{json.dumps(good)}\n{json.dumps({**good, 'input_length': 5000})}\n")
    target = tmp_path / "result.json"

    # Nobody listens there: an attempt to begin would be another error.
    assert main(["replay", str(trace), "--manager", "127.0.0.1:1", "--json", str(target)]) == 1
    assert capsys.readouterr().err == "error: line 2 of the trace: input_length 5000 needs 9 or 10 hash_ids in blocks of 512 tokens, but there are 1\n"
    assert not target.exists()
    trace.write_text("\n")
    assert main(["replay", str(trace)]) == 1
    assert "has no requests" in capsys.readouterr().err
