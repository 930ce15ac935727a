"""Certificates for tests, made in memory: an authority and what it issues. Needs the development package `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM."""

    cert: bytes
    key: bytes
    not_after: datetime.datetime

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """Into `<name>.crt` and `<name>.key`; returns their paths."""
        (folder / f"{name}.crt").write_bytes(self.cert)
        (folder / f"{name}.key").write_bytes(self.key)
        return str(folder / f"{name}.crt"), str(folder / f"{name}.key")


class Authority:
    """Signs certificates for localhost and 127.0.0.1."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = _now()
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        own = _builder(self._name, self._name, self._key, now - 365 * DAY, now + 365 * DAY)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(usage, critical=True)
        own = own.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        self.cert = own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str = "localhost", *, valid_for: datetime.timedelta = 90 * DAY, password: bytes | None = None, names: Sequence[str] = ()) -> Pair:
        """`valid_for`: from now on; negative for one that has expired. `password`: encrypts the key. `names`: further DNS names."""
        key = ec.generate_private_key(ec.SECP256R1())
        not_after = (_now() + valid_for).replace(microsecond=0)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = [x509.DNSName(host) for host in ("localhost", *names)]
        found = x509.SubjectAlternativeName([*hosts, x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = _builder(subject, self._name, key, not_after - 200 * DAY, not_after)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(found, critical=False)
        made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        cert = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        return Pair(cert, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden), not_after)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, not_before: datetime.datetime, not_after: datetime.datetime
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return made.serial_number(x509.random_serial_number()).not_valid_before(not_before).not_valid_after(not_after)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
