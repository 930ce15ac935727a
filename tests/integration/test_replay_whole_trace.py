"""The main promise of issue A: the whole conversation trace, one request after another, through one manager. Takes about a minute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcm.cli.main import main

pytestmark = pytest.mark.integration

REQUESTS = 12_031
TOTAL_BLOCKS = 276_491
HIT_BLOCKS = 105_592
DISTINCT_BLOCKS = 170_899
INPUT_TOKENS = 144_793_823
BYTES = 64


def test_the_whole_conversation_trace_has_exactly_the_hits_of_the_oracle(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    code = main(["replay", "conversation", "--json", str(target), "--block-bytes", str(BYTES), "--work-dir", str(tmp_path)])
    result = json.loads(target.read_text())

    assert code == 0
    assert (result["requests"], result["total_blocks"], result["hit_blocks"]) == (REQUESTS, TOTAL_BLOCKS, HIT_BLOCKS)
    assert result["input_tokens"] == INPUT_TOKENS
    assert f"{result['hit_tokens'] / result['input_tokens']:.2%}" == "37.34%"
    # Every byte of every hit came back as it was written.
    assert (result["bytes_verified"], result["mismatches"]) == (HIT_BLOCKS * BYTES, 0)
    # Nothing is being written or deleted any more, and the usage is the sum of the sizes.
    assert result["states"] == {"CLS_SERVING": DISTINCT_BLOCKS}
    assert result["usage_bytes"] == result["stored_bytes"] == result["bytes_written"] == DISTINCT_BLOCKS * BYTES
    assert result["problems"] == []
