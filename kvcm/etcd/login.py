"""The token that goes with every call when a user is configured. It is got by a login, used until etcd refuses it, and then got anew.

Tokens run out (five minutes unused, unless etcd was told otherwise) and are forgotten by a member that restarts, so a refusal is normal.

Danger: without TLS user and password travel readable to everybody on the way.
"""

from __future__ import annotations

import asyncio
import logging

import grpc
import grpc.aio

from kvcm.etcd import etcd_v3_pb2 as pb
from kvcm.etcd import files
from kvcm.etcd.connections import Connection
from kvcm.etcd.status import NOT_ENABLED, details_of
from kvcm.etcd.uri import EtcdConfig

_log = logging.getLogger("kvcm.etcd")
Metadata = tuple[tuple[str, str], ...]
# The member that has lost its leader says so at once instead of waiting for one.
_COMMON: Metadata = (("hasleader", "true"),)


class Login:
    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._token: str | None = None
        self._lock = asyncio.Lock()

    @property
    def possible(self) -> bool:
        return self._config.has_login

    async def metadata(self, connection: Connection, limit_s: float) -> Metadata:
        """For one call; logs in when there is no token. Raises AioRpcError, EtcdUnavailable (credentials cannot be read)."""
        if not self._config.has_login:
            return _COMMON
        if self._token is None:
            async with self._lock:
                if self._token is None:
                    self._token = await self._log_in(connection, limit_s)
        return (*_COMMON, ("token", self._token)) if self._token else _COMMON

    def refused(self, used: Metadata) -> None:
        """The token in these metadata does not work any more; the next call gets another one."""
        if dict(used).get("token", "") == (self._token or ""):
            self._token = None

    async def _log_in(self, connection: Connection, limit_s: float) -> str:
        config = self._config
        user, password = config.user, config.password
        if config.username_file:
            user, password = await files.in_thread(lambda: (files.read_secret(config.username_file), files.read_secret(config.password_file)))
        call = connection.channel.unary_unary(
            "/etcdserverpb.Auth/Authenticate",
            request_serializer=pb.AuthenticateRequest.SerializeToString,
            response_deserializer=pb.AuthenticateResponse.FromString,
        )
        try:
            reply = await call(pb.AuthenticateRequest(name=user, password=password), timeout=limit_s, metadata=_COMMON)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION and NOT_ENABLED in details_of(error):
                _log.warning("etcd_without_authentication: a user is configured, but etcd asks nobody who they are")
                return ""
            raise
        return str(reply.token)
