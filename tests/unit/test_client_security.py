"""Tokens, passwords and certificates of clients: where they come from, when they are read again, and that none of them shows."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from kvcm.client.config import ClientConfig
from kvcm.client.errors import InvalidClientConfig
from kvcm.client.security import PLAIN, AccountLogin, BearerToken, ClientSecurity, TlsFiles

pytestmark = pytest.mark.unit

CANARY = "c4n4ry-s3cret"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_sent_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{CANARY}\n")
    for token in (BearerToken(CANARY), BearerToken(file=str(file))):
        security = ClientSecurity(credential=token)
        assert security.metadata() == (("authorization", f"Bearer {CANARY}"),)
        assert security.metadata(force=True) == (("x-kvcm-force", "true"), ("authorization", f"Bearer {CANARY}"))
        assert CANARY not in f"{security!r} {token!s} {security}"
    assert PLAIN.metadata() == ()
    assert PLAIN.metadata(force=True) == (("x-kvcm-force", "true"),)


def test_an_account_is_sent_as_basic_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{CANARY} with spaces\n")
    security = ClientSecurity.of(user="ann", password_file=str(file))
    ((_, sent),) = security.metadata()
    assert base64.b64decode(sent.removeprefix("Basic ")).decode() == f"ann:{CANARY} with spaces"
    assert CANARY not in repr(security)
    assert "ann" in repr(security)
    assert CANARY not in repr(AccountLogin("ann", CANARY))


def test_a_rotated_file_is_read_within_a_second_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "token"
    file.write_text("first")
    token = BearerToken(file=str(file), now=clock)
    assert token.authorization() == "Bearer first"
    (tmp_path / "next").write_text("second")
    os.replace(tmp_path / "next", file)
    assert token.authorization() == "Bearer first"
    clock.now += 1
    assert token.authorization() == "Bearer second"
    for broken in ("", "two words", "a,b", "\x00", "ü"):
        file.write_text(broken)
        clock.now += 1
        assert token.authorization() == "Bearer second"
    file.unlink()
    clock.now += 1
    assert token.authorization() == "Bearer second"
    file.write_text("third")
    clock.now += 1
    assert token.authorization() == "Bearer third"


def test_a_file_that_was_never_good_is_one_sentence_without_its_content(tmp_path: Path) -> None:
    missing = BearerToken(file=str(tmp_path / "missing"))
    with pytest.raises(InvalidClientConfig, match=r"missing cannot be read: No such file"):
        missing.authorization()
    file = tmp_path / "token"
    for content in ("", f"{CANARY} {CANARY}", f"{CANARY},{CANARY}", "x" * 9000):
        file.write_text(content)
        with pytest.raises(InvalidClientConfig) as caught:
            BearerToken(file=str(file)).authorization()
        assert CANARY not in caught.value.message
    # It is looked for again at once: nothing good is known yet.
    late = BearerToken(file=str(tmp_path / "late"))
    with pytest.raises(InvalidClientConfig):
        late.authorization()
    (tmp_path / "late").write_text("now")
    assert late.authorization() == "Bearer now"


def test_what_contradicts_itself_is_refused() -> None:
    for make in (
        lambda: BearerToken(),
        lambda: BearerToken("a", file="b"),
        lambda: BearerToken("two words"),
        lambda: AccountLogin("", "p"),
        lambda: AccountLogin("a:b", "p"),
        lambda: AccountLogin("a", "p\n"),
        lambda: TlsFiles(cert_file="c"),
        lambda: TlsFiles(key_file="k"),
        lambda: ClientSecurity.of(user="a"),
        lambda: ClientSecurity.of(password_file="f"),
        lambda: ClientSecurity.of(user="a", password_file="f", token_file="t"),
    ):
        with pytest.raises(InvalidClientConfig):
            make()


def test_tls_files_are_named_when_they_cannot_be_used(tmp_path: Path) -> None:
    missing = ClientSecurity.of(ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(InvalidClientConfig, match=r"ca\.pem"):
        missing.grpc_credentials()
    with pytest.raises(InvalidClientConfig, match=r"ca\.pem"):
        missing.ssl_context()
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(InvalidClientConfig, match=r"ca\.pem"):
        missing.ssl_context()
    assert PLAIN.grpc_credentials() is None
    assert ClientSecurity.of(tls=True).grpc_credentials() is not None
    assert ClientSecurity.of(server_name="kvcm").grpc_options() == [("grpc.ssl_target_name_override", "kvcm")]
    assert PLAIN.grpc_options() == []


def test_rotated_certificates_change_the_stamp(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("one")
    security = ClientSecurity.of(ca_file=str(ca))
    before = security.stamp()
    assert security.stamp() == before
    ca.write_text("other")
    assert security.stamp() != before
    assert PLAIN.stamp() is None


def test_the_client_configuration_names_files_only(tmp_path: Path) -> None:
    config = {
        "instance_group": "g",
        "instance_id": "i",
        "block_size": 1,
        "location_spec_infos": {"tp0": 1},
        "model_deployment": {"model_name": "m", "dtype": "d"},
    }
    assert ClientConfig.parse(config).security is PLAIN or ClientConfig.parse(config).security == PLAIN
    file = tmp_path / "token"
    file.write_text(CANARY)
    parsed = ClientConfig.parse(config | {"security": {"token_file": str(file), "ca_file": "/ca.pem"}})
    assert parsed.security.metadata() == (("authorization", f"Bearer {CANARY}"),)
    assert parsed.security.tls == TlsFiles("/ca.pem")
    assert CANARY not in repr(parsed)
    with pytest.raises(InvalidClientConfig, match=r"security\.token_file must be a text"):
        ClientConfig.parse(config | {"security": {"token_file": 1}})
