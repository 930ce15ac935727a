"""Connections to etcd's endpoints: one at a time, the next endpoint when one fails, a new one when certificates change.

Why a connection is never mended but replaced: a half-open one (the peer is stopped or the network swallows everything) looks healthy for minutes, and gRPC
shares and delays reconnections behind our back. Replaced ones end with the last call that uses them.

Danger: without our own subchannel pool a "new" channel would be handed the old socket.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Final

import grpc
import grpc.aio

from kvcm.etcd import files
from kvcm.etcd.errors import EtcdUnavailable
from kvcm.etcd.uri import EtcdConfig

MAX_REPLY_BYTES: Final = 16 << 20
_LOOK_AGAIN_S: Final = 1.0
_log = logging.getLogger("kvcm.etcd")


class NotConnected(Exception):
    """Nothing has been sent."""


class Connection:
    """`with connection:` around whatever uses it; it closes itself after the last use once it has been retired."""

    def __init__(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self._uses = 0
        self._retired = False
        self._closing: asyncio.Task[None] | None = None

    def __enter__(self) -> Connection:
        self._uses += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._uses -= 1
        self._close_if_unused()

    @property
    def closed(self) -> bool:
        return self._closing is not None and self._closing.done()

    def retire(self) -> None:
        """No new use begins; the ones under way end in peace."""
        self._retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and self._uses == 0 and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.channel.close(None))

    async def close(self) -> None:
        """Now, whoever uses it."""
        self._retired = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.channel.close(None))
        await asyncio.wait({self._closing}, timeout=1.0)

    async def ready(self, limit_s: float) -> None:
        """Until requests can be sent. Raises NotConnected."""
        try:
            async with asyncio.timeout(limit_s):
                state = self.channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        raise NotConnected
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except (TimeoutError, grpc.aio.UsageError):
            raise NotConnected from None


class Connections:
    """`current` and `replace`; not more than one connection is in use for new calls."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._files = tuple(name for name in (config.ca_file, config.cert_file, config.key_file) if name)
        self._number = 0
        self._current: Connection | None = None
        self._old: set[Connection] = set()
        self._stamp: files.Stamp = ()
        self._looked_at = float("-inf")
        self._lock = asyncio.Lock()
        self._told = ""
        self._closed = False

    @property
    def count(self) -> int:
        return len(self._config.endpoints)

    @property
    def names(self) -> str:
        return ", ".join(self._config.endpoints)

    async def current(self) -> Connection:
        """Perhaps not connected yet. Raises EtcdUnavailable for certificates that cannot be read and when closed."""
        if self._current is not None and not self._should_look():
            return self._current
        async with self._lock:
            if self._closed:
                raise EtcdUnavailable("The client of etcd has been closed.")
            if self._current is None or self._should_look():
                await self._look()
        assert self._current is not None
        return self._current

    def replace(self, failed: Connection) -> None:
        """This one does not work: whoever comes next tries the next endpoint, on a new connection. Harmless when it was replaced already."""
        if self._current is failed:
            self._retire()
            self._number = (self._number + 1) % self.count

    async def close(self) -> None:
        self._closed = True
        self._retire()
        await asyncio.gather(*(connection.close() for connection in self._old))
        self._old.clear()

    def _should_look(self) -> bool:
        return bool(self._files) and asyncio.get_running_loop().time() - self._looked_at >= _LOOK_AGAIN_S

    async def _look(self) -> None:
        """A new connection if there is none, or if the files have changed. While new files cannot be used, the old connection stays."""
        try:
            stamp, material = await files.in_thread(self._read)
        except EtcdUnavailable as error:
            if self._current is None:
                raise
            if error.message != self._told:
                _log.error("etcd_certificates_not_reloaded reason=%r", error.message)
                self._told = error.message
            self._looked_at = asyncio.get_running_loop().time()
            return
        self._looked_at = asyncio.get_running_loop().time()
        if self._current is None or stamp != self._stamp:
            if self._current is not None:
                _log.info("etcd_certificates_reloaded")
            self._told = ""
            self._retire()
            self._stamp = stamp
            self._current = self._open(material)

    def _read(self) -> tuple[files.Stamp, tuple[bytes | None, ...]]:
        """In a thread. The stamp is taken first: files that change in between are looked at again."""
        stamp = files.stamp(self._files)
        config = self._config
        return stamp, tuple(files.read(name, files.MAX_PEM_BYTES) if name else None for name in (config.ca_file, config.key_file, config.cert_file))

    def _open(self, material: tuple[bytes | None, ...]) -> Connection:
        endpoint = self._config.endpoints[self._number]
        options: list[tuple[str, Any]] = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
            # An idle stream on a dead connection is found out; etcd refuses pings that come more often than every 5 s.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            ("grpc.http2.max_pings_without_data", 0),
            # How long one attempt to connect may take: handshakes over slow lines need seconds.
            ("grpc.min_reconnect_backoff_ms", 10_000),
        ]
        if not self._config.tls:
            return Connection(endpoint, grpc.aio.insecure_channel(endpoint, options))
        if self._config.server_name:
            options.append(("grpc.ssl_target_name_override", self._config.server_name))
        return Connection(endpoint, grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(*material), options))

    def _retire(self) -> None:
        connection, self._current = self._current, None
        if connection is not None:
            self._old = {old for old in self._old if not old.closed}
            self._old.add(connection)
            connection.retire()
