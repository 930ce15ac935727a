"""How a client proves who it is and checks who answers: TLS files, and a bearer token or an account's password, for every transport.

Nothing here shows a secret: `repr` names files, never what is in them. Files are read again when they change, so that a rotated Kubernetes Secret needs no
restart: tokens and passwords at most once a second, certificates when a connection is opened.

Danger: without TLS a token or password travels readable to everybody on the way.
"""

from __future__ import annotations

import base64
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvcm.client.errors import InvalidClientConfig

if TYPE_CHECKING:
    import grpc

AUTHORIZATION = "authorization"
FORCE = "x-kvcm-force"
_LOOK_AGAIN_S = 1.0
_MAX_SECRET_BYTES = 8192
_MAX_PEM_BYTES = 1 << 20


class SecretText:
    """One secret, given or in a file. Thread-safe. While a changed file cannot be read, the last good value stays in use."""

    def __init__(self, what: str, check: Callable[[str, str], str], value: str, file: str, now: Callable[[], float]) -> None:
        """`check(value, name)` returns the value or raises. Raises InvalidClientConfig unless exactly one of `value` and `file` is given."""
        if bool(value) == bool(file):
            raise InvalidClientConfig(f"a {what} is given either as a value or as a file, exactly one of them")
        self._what = what
        self._check = check
        self._value = check(value, f"the {what}") if value else ""
        self.file = file
        self._now = now
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._stamp: tuple[int, ...] = ()

    def current(self) -> str:
        """Raises InvalidClientConfig when the file has never been readable."""
        if not self.file:
            return self._value
        with self._lock:
            if self._now() - self._looked_at >= _LOOK_AGAIN_S:
                self._look()
            return self._value

    def _look(self) -> None:
        try:
            stamp = _stamp(self.file)
            if stamp != self._stamp:
                text = _read(self.file, _MAX_SECRET_BYTES, self._what).decode("utf-8", "replace").strip("\r\n\t ")
                self._value = self._check(text, f"the {self._what} in {self.file}")
                self._stamp = stamp
        except InvalidClientConfig:
            if not self._value:
                raise
        self._looked_at = self._now()

    def __repr__(self) -> str:
        return f"file={self.file!r}" if self.file else "<hidden>"


class BearerToken:
    """A token, as a value or in a file that is re-read."""

    def __init__(self, value: str = "", *, file: str = "", now: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidClientConfig unless exactly one of `value` and `file` is given, and the value can be sent in a header."""
        self._secret = SecretText("token", _token, value, file, now)

    def authorization(self) -> str:
        """The value of the Authorization header. Raises InvalidClientConfig when the file has never been readable."""
        return f"Bearer {self._secret.current()}"

    def __repr__(self) -> str:
        return f"BearerToken({self._secret!r})"


class AccountLogin:
    """An account of the manager: its name, and the password as a value or in a file that is re-read."""

    def __init__(self, user: str, password: str = "", *, file: str = "", now: Callable[[], float] = time.monotonic) -> None:
        """Raises InvalidClientConfig for a name with a colon, and as BearerToken."""
        if not user or ":" in user or not user.isprintable():
            raise InvalidClientConfig("an account's name must not be empty and has no colons or control characters")
        self._user = user
        self._secret = SecretText("password", _password, password, file, now)

    def authorization(self) -> str:
        """The value of the Authorization header. Raises InvalidClientConfig when the file has never been readable."""
        return f"Basic {base64.b64encode(f'{self._user}:{self._secret.current()}'.encode()).decode()}"

    def __repr__(self) -> str:
        return f"AccountLogin({self._user!r}, {self._secret!r})"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `ca_file` empty: the system's authorities. `cert_file` and `key_file`: this client's own certificate, both or none.

    `server_name`: the name to look for in the manager's certificate instead of the one in its address.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert_file) != bool(self.key_file):
            raise InvalidClientConfig("a client certificate needs its key file, and a key file its certificate")

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """Changes when one of the files does; a file that cannot be looked at counts as unchanged."""
        return tuple(_stamp_or_nothing(name) for name in (self.ca_file, self.cert_file, self.key_file))


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """`tls` None: plain text. `credential` None: no authorization header."""

    tls: TlsFiles | None = None
    credential: BearerToken | AccountLogin | None = None

    @classmethod
    def of(
        cls,
        *,
        token_file: str = "",
        user: str = "",
        password_file: str = "",
        ca_file: str = "",
        cert_file: str = "",
        key_file: str = "",
        server_name: str = "",
        tls: bool = False,
    ) -> ClientSecurity:
        """From names as configuration has them; any TLS file turns TLS on, and `tls` does so with the system's authorities. Raises InvalidClientConfig."""
        if bool(user) != bool(password_file):
            raise InvalidClientConfig("an account needs its password file, and a password file its account")
        if user and token_file:
            raise InvalidClientConfig("a client sends either a token or an account's password, not both")
        use_tls = tls or bool(ca_file or cert_file or key_file or server_name)
        files = TlsFiles(ca_file, cert_file, key_file, server_name) if use_tls else None
        if user:
            return cls(files, AccountLogin(user, file=password_file))
        return cls(files, BearerToken(file=token_file) if token_file else None)

    def metadata(self, *, force: bool = False) -> tuple[tuple[str, str], ...]:
        """gRPC metadata of one call, also good as HTTP headers. `force`: carry out a removal that the manager would refuse."""
        sent: tuple[tuple[str, str], ...] = ((FORCE, "true"),) if force else ()
        if self.credential is not None:
            sent += ((AUTHORIZATION, self.credential.authorization()),)
        return sent

    def stamp(self) -> object:
        """Changes when certificates have been rotated: connections opened before show the old ones."""
        return self.tls.stamp() if self.tls is not None else None

    def grpc_credentials(self) -> grpc.ChannelCredentials | None:
        """None: plain text. Raises InvalidClientConfig for files that cannot be read."""
        if self.tls is None:
            return None
        import grpc

        ca, key, cert = ((_read(name, _MAX_PEM_BYTES, what) if name else None) for name, what in self._named())
        return grpc.ssl_channel_credentials(ca, key, cert)

    def grpc_options(self) -> list[tuple[str, str]]:
        if self.tls is None or not self.tls.server_name:
            return []
        return [("grpc.ssl_target_name_override", self.tls.server_name)]

    def ssl_context(self) -> ssl.SSLContext:
        """For HTTPS; without `tls`, the system's authorities and no certificate. Raises InvalidClientConfig."""
        tls = self.tls or TlsFiles()
        try:
            context = ssl.create_default_context(cafile=tls.ca_file or None)
            if tls.cert_file:
                context.load_cert_chain(tls.cert_file, tls.key_file)
        except OSError as error:  # ssl.SSLError is one: its text names neither the file nor the reason in plain words
            names = ", ".join(name for name in (tls.ca_file, tls.cert_file, tls.key_file) if name)
            raise InvalidClientConfig(f"the TLS files {names} cannot be used: a file is missing, is not PEM, or the key belongs to another one") from error
        return context

    def _named(self) -> tuple[tuple[str, str], ...]:
        tls = self.tls or TlsFiles()
        return ((tls.ca_file, "authority"), (tls.key_file, "key"), (tls.cert_file, "certificate"))


PLAIN = ClientSecurity()
"""No TLS and no token."""


def _token(value: str, name: str) -> str:
    """The token, if it can stand in an Authorization header: one word of printable ASCII without a comma, which separates tokens on servers."""
    if not value or len(value) > _MAX_SECRET_BYTES or not all("!" <= char <= "~" and char != "," for char in value):
        raise InvalidClientConfig(f"{name} must be one word of printable ASCII characters without commas")
    return value


def _password(value: str, name: str) -> str:
    if not value or len(value) > _MAX_SECRET_BYTES or not value.isprintable():
        raise InvalidClientConfig(f"{name} must not be empty and has no control characters")
    return value


def _read(name: str, limit: int, what: str) -> bytes:
    try:
        with Path(name).open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise InvalidClientConfig(f"the {what} file {name} cannot be read: {error.strerror or 'unknown reason'}") from error
    if len(content) > limit:
        raise InvalidClientConfig(f"the {what} file {name} is larger than {limit} bytes")
    return content


def _stamp(name: str) -> tuple[int, ...]:
    try:
        found = Path(name).stat()
    except OSError as error:
        raise InvalidClientConfig(f"the file {name} cannot be read: {error.strerror or 'unknown reason'}") from error
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _stamp_or_nothing(name: str) -> tuple[int, ...]:
    if not name:
        return ()
    try:
        return _stamp(name)
    except InvalidClientConfig:
        return ()
