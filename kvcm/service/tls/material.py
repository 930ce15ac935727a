"""A certificate chain, its key and the authority of clients, proven to fit together before anything uses them.

Danger: what is loaded into a live context in pieces can break it half-way (a new certificate with the old key). So a candidate is tried as a whole in a
context of its own, from the very bytes that gRPC will get too, and both transports change over only afterwards.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field

from kvcm.config.errors import SettingsError
from kvcm.service.tls.expiry import first_expiry_s

MIN_VERSION = ssl.TLSVersion.TLSv1_2


@dataclass(frozen=True, slots=True)
class Material:
    """`expires_s`: Unix time at which the first certificate of the chain expires. `client_ca`: empty unless clients must show a certificate."""

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client_ca: bytes = field(repr=False)
    context: ssl.SSLContext = field(repr=False)
    expires_s: int


def make_material(chain: bytes, key: bytes, client_ca: bytes = b"") -> Material:
    """Raises SettingsError with a sentence that holds nothing of the contents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MIN_VERSION
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_pair(context, chain, key)
    if client_ca:
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii"))
        except (ssl.SSLError, ValueError):
            raise SettingsError("The file of 'kvcm.tls.client_ca_file' holds no certificates in PEM form.") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return Material(chain, key, client_ca, context, first_expiry_s(chain))


def _load_pair(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """`ssl` reads only files; these exist in memory alone, so that a key is never written anywhere."""
    descriptors = []
    try:
        for name, content in (("kvcm-chain", chain), ("kvcm-key", key)):
            descriptors.append(os.memfd_create(name, os.MFD_CLOEXEC))
            with open(descriptors[-1], "wb", closefd=False) as file:
                file.write(content)
        chain_path, key_path = (f"/proc/self/fd/{descriptor}" for descriptor in descriptors)
        # Without a password function an encrypted key would make OpenSSL ask on the terminal, and wait.
        context.load_cert_chain(chain_path, key_path, password=_no_password)
    except _Encrypted:
        raise SettingsError("The key in 'kvcm.tls.key_file' is encrypted; give one without a password and protect the file.") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError("The key in 'kvcm.tls.key_file' does not belong to the certificate in 'kvcm.tls.cert_file'.") from None
        raise SettingsError("'kvcm.tls.cert_file' and 'kvcm.tls.key_file' do not hold a certificate and its key in PEM form.") from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted
