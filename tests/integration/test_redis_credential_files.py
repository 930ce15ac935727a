"""User and password of Redis from files: read for each login, so that a rotated Secret counts without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcm.common.errors import InvalidArgument, StorageError
from kvcm.common.redis.connection import RedisRefused, connect, pack
from kvcm.common.redis.target import parse_target
from kvcm.common.redis.testing import RedisServer, redis_binary

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """Its default user has no password, so that the server can be started and changed; the user `manager` has one."""
    with RedisServer() as running:
        yield running


def whoami(uri: str) -> str:
    async def ask() -> str:
        connection = await connect(parse_target(uri), "test")
        try:
            (name,) = await connection.send(pack("ACL", "WHOAMI"), 1, 5)
        finally:
            connection.close()
        return str(name.decode())

    return asyncio.run(ask())


def test_a_rotated_password_counts_with_the_next_connection(redis: RedisServer, tmp_path: Path) -> None:
    user, password = tmp_path / "username", tmp_path / "password"
    user.write_text("manager\n")
    uri = f"{redis.uri}?username_file={user}&password_file={password}"
    for text in ("first-canary", "second-canary"):
        redis.call("ACL", "SETUSER", "manager", "reset", "on", f">{text}", "+@all", "~*", "&*")
        password.write_text(f"{text}\n")
        assert whoami(uri) == "manager"
    password.write_text("wrong-canary")
    with pytest.raises(RedisRefused, match="WRONGPASS") as caught:
        whoami(uri)
    assert "canary" not in caught.value.message


def test_the_password_alone_is_that_of_the_default_user(redis: RedisServer, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("default-canary")
    redis.call("CONFIG", "SET", "requirepass", "default-canary")
    try:
        assert whoami(f"{redis.uri}?password_file={password}") == "default"
    finally:
        redis.call("CONFIG", "SET", "requirepass", "")


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"x" * 9000])
def test_a_file_that_holds_no_password_is_named_and_its_content_is_not(redis: RedisServer, tmp_path: Path, content: bytes | None) -> None:
    password = tmp_path / "password"
    if content is not None:
        password.write_bytes(content)
    with pytest.raises(StorageError) as caught:
        whoami(f"{redis.uri}?password_file={password}")
    assert str(password) in caught.value.message
    assert "two" not in caught.value.message


@pytest.mark.parametrize("uri", ["redis://canary@h/?password_file=/f", "redis://h/?auth=canary&password_file=/f", "redis://h/?username_file=/f"])
def test_two_places_for_a_password_or_half_of_one_are_refused(uri: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_target(uri)
    assert "canary" not in caught.value.message
