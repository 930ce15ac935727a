"""The URI of an etcd: what it may say, what is refused with a sentence, and that nothing of it is repeated."""

from __future__ import annotations

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.common.redaction import redact_uri
from kvcm.etcd.model import prefix_end
from kvcm.etcd.uri import EtcdConfig, parse_etcd_uri

pytestmark = pytest.mark.unit


def test_everything_that_a_uri_may_say() -> None:
    text = "etcd://us%40er:p%3Aw%2F@h1:2379,[::1]:2380,h-3.svc:1/a/b-c?ca=/ca&cert=/c&key=/k&server_name=etcd&timeout_ms=700"
    assert parse_etcd_uri(text) == EtcdConfig(
        endpoints=("h1:2379", "[::1]:2380", "h-3.svc:1"),
        prefix="a/b-c",
        tls=True,
        ca_file="/ca",
        cert_file="/c",
        key_file="/k",
        server_name="etcd",
        user="us@er",
        password="p:w/",
        timeout_s=0.7,
    )
    assert parse_etcd_uri("etcd://h:1") == EtcdConfig(("h:1",), "kvcm")
    assert parse_etcd_uri("etcd://h:1/?tls=true").tls
    files = parse_etcd_uri("etcd://h:1?username_file=/u&password_file=/p")
    assert (files.username_file, files.password_file, files.has_login) == ("/u", "/p", True)
    assert parse_etcd_uri("etcd://h:1/x/").key("registry", "a/b") == b"/x/registry/a/b"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("etcd://", "host:port"),
        ("etcd://h", "host:port"),
        ("etcd://h:0", "host:port"),
        ("etcd://h:1,", "host:port"),
        ("etcd://h:70000", "host:port"),
        ("etcd://::1:2379", "host:port"),
        ("etcd://" + ",".join(["h:1"] * 17), "at most 16"),
        ("redis://h:1", "begins with"),
        ("etcd:/h:1", "begins with"),
        ("etcd://canary@h:1", "user:password"),
        ("etcd://:canary@h:1", "user:password"),
        ("etcd://canary:@h:1", "user:password"),
        ("etcd://h:1/a//b", "prefix"),
        ("etcd://h:1/a b", "prefix"),
        ("etcd://h:1?canary=1", "parameters"),
        ("etcd://h:1?ca=", "given once"),
        ("etcd://h:1?ca=/1&ca=/2", "given once"),
        ("etcd://h:1?tls=canary", "true or false"),
        ("etcd://h:1?tls=false&ca=/x", "names no certificates"),
        ("etcd://h:1?cert=/canary", "belong together"),
        ("etcd://h:1?username_file=/canary", "belong together"),
        ("etcd://u:canary@h:1?username_file=/u&password_file=/p", "not both"),
        ("etcd://h:1?timeout_ms=99", "100 to 60000"),
        ("etcd://h:1?timeout_ms=canary", "100 to 60000"),
        ("etcd://h:1/" + "canary" * 1000, "at most 4096"),
    ],
)
def test_what_is_wrong_is_said_without_repeating_it(text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence) as caught:
        parse_etcd_uri(text)
    assert "canary" not in caught.value.message


def test_secrets_show_neither_in_a_representation_nor_in_a_redacted_uri() -> None:
    text = "etcd://someone:canary@h:1/x"
    assert "canary" not in repr(parse_etcd_uri(text))
    assert redact_uri(text) == "etcd://***@h:1/x"


def test_the_end_of_a_prefix_is_behind_all_its_keys() -> None:
    assert prefix_end(b"a/") == b"a0"
    assert prefix_end(b"a\xff\xff") == b"b"
    assert prefix_end(b"\xff") == b"\0", "to etcd: everything from the key on"
