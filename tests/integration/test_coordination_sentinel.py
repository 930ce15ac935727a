"""Coordination through a Redis that sentinels watch: the master dies, a replica is promoted, leadership goes on with greater epochs and never too early."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from kvcm.common.clock import SystemClock
from kvcm.common.errors import StorageError
from kvcm.common.redis.connection import pack
from kvcm.common.redis.testing import RedisServer, redis_binary
from kvcm.common.testing_ports import free_port
from kvcm.coordination.open import open_coordinator
from kvcm.coordination.port import Leader

pytestmark = [pytest.mark.integration, pytest.mark.skipif(redis_binary() is None, reason="redis-server is not installed")]

T = TypeVar("T")
LEASE_MS = 400


@contextmanager
def sentinel(folder: Path, master: RedisServer) -> Iterator[int]:
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor main 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n",
        encoding="utf-8",
    )
    binary = redis_binary()
    assert binary is not None
    process = subprocess.Popen([binary, str(config), "--sentinel"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait(10)


def said(port: int, *command: str) -> bytes:
    """Over a connection of its own: sentinels cut the others when they promote a replica."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as talk:
            talk.sendall(pack(*command))
            return talk.recv(1 << 16)
    except OSError:
        return b""


async def eventually(ask: Callable[[], Awaitable[T | None]]) -> T:
    while True:
        try:
            if (found := await ask()) is not None:
                return found
        except StorageError:
            pass
        await asyncio.sleep(0.02)


async def until(holds: Callable[[], bool]) -> None:
    async def ask() -> bool | None:
        return holds() or None

    await eventually(ask)


def test_a_fail_over_of_the_sentinels_keeps_epochs_and_lets_a_lease_pass(tmp_path: Path) -> None:
    async def story(master: RedisServer, replica: RedisServer, port: int) -> None:
        uri = f"redis+sentinel://127.0.0.1:{port}/main?cluster_name=c&timeout_ms=500"
        a, b = (open_coordinator(uri, SystemClock()) for _ in range(2))
        first = await eventually(lambda: a.campaign("a", LEASE_MS))
        assert await eventually(b.observe) in (Leader("a", first), None)
        # The sentinel must know the replica, and the replica the last write, before the master goes.
        await until(lambda: b"connected_slaves:1" in master.call("INFO", "replication"))
        await until(lambda: b"role-reported" in said(port, "SENTINEL", "replicas", "main"))
        renewed = time.monotonic()
        first = await eventually(lambda: a.campaign("a", LEASE_MS))
        await until(lambda: master.call("WAIT", 1, 100) == 1)
        master.kill()
        second = await eventually(lambda: b.campaign("b", LEASE_MS))
        assert time.monotonic() >= renewed + LEASE_MS / 1000
        assert second > first
        assert b"role:master" in said(replica.port, "INFO", "replication")
        assert not await eventually_known(lambda: a.keep_alive("a", first, LEASE_MS))
        for coordinator in (a, b):
            await coordinator.close()
        await asyncio.sleep(0)  # cut transports are closed by the loop's next turn

    async def eventually_known(ask: Callable[[], Awaitable[bool]]) -> bool:
        async def known() -> tuple[bool] | None:
            return (await ask(),)

        return (await eventually(known))[0]

    with RedisServer() as master, RedisServer() as replica:
        replica.call("REPLICAOF", "127.0.0.1", master.port)
        with sentinel(tmp_path, master) as port:

            async def run() -> None:
                async with asyncio.timeout(90):
                    await story(master, replica, port)

            asyncio.run(run())
