"""I-LOC-3, I-LOC-4, I-LOC-5 and I-EX-7 (behaviour 10.2, 11.4): bytes go late, with proof, and only when nobody may read them. And in the end all go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.manager.testing_story import numbers, run_story
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.property

CHOICES = st.builds(numbers, st.integers(0, 1 << 32), st.integers(60, 600))
OPS = ("start", "start", "finish", "finish", "write", "read", "remove", "trim", "sweep", "delete", "delete", "advance", "advance")
STORAGES = st.sampled_from([("file", 1), ("file", 3), ("dummy", 1), ("hf3fs", 1)])
CODEC = ProtoLocationEncoder()


@given(CHOICES, STORAGES)
@settings(deadline=None, max_examples=60)
def test_I_LOC_3_bytes_are_deleted_only_while_their_location_is_deleting(choices: list[int], storage: tuple[str, int]) -> None:
    ops = (*OPS, "fault", "remove_instance", "register")
    run_story(CODEC, choices, ops, kind=storage[0], per_file=storage[1])  # type: ignore[arg-type]


@given(CHOICES, STORAGES)
@settings(deadline=None, max_examples=50)
def test_I_LOC_4_no_reply_contains_a_location_that_was_deleting(choices: list[int], storage: tuple[str, int]) -> None:
    ops = (*OPS, "read", "read", "read", "lose", "remove")
    run_story(CODEC, choices, ops, kind=storage[0], per_file=storage[1])  # type: ignore[arg-type]


@given(CHOICES, st.sampled_from(["suspending", "local"]))
@settings(deadline=None, max_examples=60)
def test_I_LOC_5_the_configured_delay_passes_before_bytes_are_deleted(choices: list[int], metadata: str) -> None:
    ops = (*OPS, "remove", "trim", "remove_instance", "register", "fault")
    run_story(CODEC, choices, ops, metadata=metadata)  # type: ignore[arg-type]


@given(CHOICES, STORAGES)
@settings(deadline=None, max_examples=60)
def test_I_EX_7_a_record_goes_only_after_proof_and_everything_goes_in_the_end(choices: list[int], storage: tuple[str, int]) -> None:
    ops = (*OPS, "unmount", "mount", "fault", "remove_instance", "register")
    run_story(CODEC, choices, ops, kind=storage[0], per_file=storage[1])  # type: ignore[arg-type]


@given(CHOICES, STORAGES)
@settings(deadline=None, max_examples=50)
def test_I_EX_7_holds_over_crashes(choices: list[int], storage: tuple[str, int]) -> None:
    ops = (*OPS, "unmount", "mount", "fault", "remove_instance", "register", "crash")
    run_story(CODEC, choices, ops, kind=storage[0], per_file=storage[1])  # type: ignore[arg-type]


@given(CHOICES, st.sampled_from([1, 3]))
@settings(deadline=None, max_examples=25)
def test_I_EX_7_holds_over_crashes_with_metadata_in_a_file(choices: list[int], per_file: int) -> None:
    ops = (*OPS, "unmount", "mount", "remove_instance", "register", "crash")
    run_story(CODEC, choices, ops, metadata="file", per_file=per_file)
