"""What guards the etcd of a house: mutual TLS, a user, and login tokens that are forgotten after a second. All of it can be renewed on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvcm.etcd.testing import EtcdServer, ServerTls, enable_auth
from kvcm.service.tls.testing import Authority

TOKEN_S: Final = 1
OPTIONS: Final = (f"--auth-token-ttl={TOKEN_S}",)
_PASSWORD: Final = "pass-of-the-house"


class Secrets:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority()
        (folder / "ca.crt").write_bytes(self._authority.cert)
        (folder / "user").write_text("kvcm\n")
        (folder / "password").write_text(f"{_PASSWORD}\n")
        self.renew()
        self._authority.issue("looker").write(folder, "looker")
        self.tls = ServerTls(*(str(folder / name) for name in ("etcd.crt", "etcd.key", "ca.crt", "ca.crt", "looker.crt", "looker.key")))

    def renew(self) -> None:
        """New certificates and keys for etcd and for the managers, in the place of the old ones."""
        for name in ("etcd", "manager"):
            self._authority.issue(name).write(self._folder, name)

    def enable(self, etcd: EtcdServer) -> None:
        """From now on etcd wants a login."""
        enable_auth(etcd.address, {"root": "r", "kvcm": _PASSWORD}, self.tls)

    @property
    def query(self) -> str:
        """Of an etcd URI."""
        at = self._folder
        return f"?ca={at}/ca.crt&cert={at}/manager.crt&key={at}/manager.key&username_file={at}/user&password_file={at}/password"
