"""Secrets in URIs are hidden, whatever else stands there stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcm.common.redaction import redact_uri

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://h:1/?cluster_name=c", "redis://h:1/?cluster_name=c"),
        ("redis://u:pw@h:1/?cluster_name=c", "redis://***@h:1/?cluster_name=c"),
        ("redis://pw@h", "redis://***@h"),
        ("redis://:p@w/x@h/?db=1", "redis://***@h/?db=1"),
        ("redis://h/?auth=pw&db=1", "redis://h/?auth=***&db=1"),
        ("redis://u@h/?db=1&AUTH=pw", "redis://***@h/?db=1&AUTH=***"),
        ("file:///a@b/c", "file://***@b/c"),
        ("/plain/path@x", "/plain/path@x"),
        ("", ""),
    ],
)
def test_what_is_shown_of_a_uri(text: str, shown: str) -> None:
    assert redact_uri(text) == shown


@given(st.text(max_size=200))
def test_any_text_is_taken_and_a_second_time_changes_nothing(text: str) -> None:
    once = redact_uri(text)
    assert redact_uri(once) == once


@given(st.text("abcXYZ019:/@-_%+", min_size=1, max_size=40), st.text("abc019", min_size=1, max_size=10))
def test_no_user_or_password_is_left(secret: str, host: str) -> None:
    canary = f"canary{secret}canary"
    shown = redact_uri(f"redis://{canary}@{host}/?auth={canary}&db=1")
    assert "canary" not in shown
    assert shown.endswith("&db=1")
