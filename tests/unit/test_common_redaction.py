"""Secrets are hidden, whatever they are wrapped in; what only looks like one is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.redaction import is_secret_name, redact

pytestmark = pytest.mark.unit

CANARY = "c4n4ry-word"


@pytest.mark.parametrize(
    "text",
    [
        f"redis://{CANARY}@host:6379/?db=1",
        f"redis://user:{CANARY}@host:6379",
        f"redis://user:{CANARY}@x@host:6379",
        f"cannot reach redis://user:{CANARY}@host now",
        f"redis://host/?password={CANARY}&db=1",
        f"redis://host/?db=1&access_key={CANARY}",
        f"kvcm.service.admin_auth_token={CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"basic {CANARY}",
        json.dumps({"user_name": "u", "password": CANARY}),
        json.dumps({"tokens": [CANARY, CANARY]}),
        json.dumps({"secret_key": CANARY}),
        json.dumps({"inner": json.dumps({"password": CANARY})}),
        json.dumps({"inner": json.dumps({"more": json.dumps({"password": CANARY})})}),
        json.dumps({"password": CANARY})[:-3],
        json.dumps({"password": f'a"b{CANARY}'}),
    ],
)
def test_secrets_are_hidden(text: str) -> None:
    assert CANARY not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "file://nfs_01/tmp/nfs/i1/tp0/ff_0?blkid=0&size=8",
        "instance 'i' is not registered",
        json.dumps({"block_keys": [1, 2], "token_ids": [3], "tag_key": "x"}),
        "mail me@example.org",
        "",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_names_of_secrets() -> None:
    assert all(is_secret_name(name) for name in ("password", "auth_token", "tokens", "new_token", "secret_key", "auth", "access_key"))
    assert not any(is_secret_name(name) for name in ("block_keys", "token_ids", "input_token_len", "tag_key", "user_name", "uri", "author"))


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200))
def test_any_text_comes_back(text: str) -> None:
    assert isinstance(redact(text), str)
    assert redact(redact(text)) == redact(text)
