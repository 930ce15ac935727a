"""The certificate in force, for both transports and for all listeners with TLS.

New connections get the newest material; open ones stay as they are. HTTP asks for a context per connection, gRPC asks for a configuration per handshake,
so a rotation needs no restart, and an authority that is taken away counts for the next connection.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable
from typing import Any

import grpc

from kvcm.common.clock import Clock
from kvcm.config.errors import SettingsError
from kvcm.metrics import catalogue
from kvcm.metrics.families import Family
from kvcm.service.credentials import Contents
from kvcm.service.tls.material import Material, make_material

WARN_BEFORE_S = 14 * 86_400
_DAY_S = 86_400
_log = logging.getLogger("kvcm.service.tls")


class TlsKeeper:
    """`take` once before anything else. A metrics source too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current: Material | None = None
        self._configuration: Any = None
        self._told_day = -1

    @property
    def material(self) -> Material:
        if self._current is None:
            raise ValueError("no certificate was taken")
        return self._current

    def take(self, contents: Contents) -> None:
        """(chain, key) or (chain, key, client authorities) as PEM. Raises SettingsError and keeps what it has."""
        material = make_material(*contents)
        now_s = self._clock.wall_us() // 1_000_000
        if self._current is not None and material.expires_s <= now_s < self._current.expires_s:
            raise SettingsError("The new certificate in 'kvcm.tls.cert_file' has expired already, the old one has not.")
        configuration = grpc.ssl_server_certificate_configuration([(material.key, material.chain)], root_certificates=material.client_ca or None)
        # A thread of gRPC may be about to read these; each assignment is one step, and either state is whole.
        self._current, self._configuration = material, configuration
        self._told_day = -1
        self.warn()

    def warn(self) -> None:
        """Log, at most once a day, that the certificate expires soon or has expired."""
        now = self._clock.wall_us() // 1_000_000
        left, day = self.material.expires_s - now, now // _DAY_S
        if left >= WARN_BEFORE_S or day == self._told_day:
            return
        self._told_day = day
        if left <= 0:
            _log.error("certificate_expired hours_ago=%d: clients refuse to connect; replace the files of kvcm.tls.cert_file and key_file", -left // 3600)
        else:
            _log.warning("certificate_expires_soon hours=%d: replace the files of kvcm.tls.cert_file and key_file, no restart is needed", left // 3600)

    def http_context(self) -> ssl.SSLContext:
        """A context for a server that lives longer than a certificate."""
        return _CurrentContext.of(self)

    def grpc_credentials(self) -> Any:
        """Keep the result as long as the server runs: gRPC calls back into it."""
        required = bool(self.material.client_ca)
        return grpc.dynamic_ssl_server_credentials(self._configuration, lambda: self._configuration, required)

    def families(self) -> Iterable[Family]:
        self.warn()
        return [catalogue.CERTIFICATE_EXPIRY.only(float(self.material.expires_s))]


class _CurrentContext(ssl.SSLContext):
    """Hands each connection to the context of the newest material. asyncio and uvloop ask for nothing but `wrap_bio`."""

    _keeper: TlsKeeper

    @classmethod
    def of(cls, keeper: TlsKeeper) -> _CurrentContext:
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._keeper = keeper
        return context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self._keeper.material.context.wrap_bio(*args, **kwargs)
