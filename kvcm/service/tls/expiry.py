"""When certificates expire: the one field of X.509 that the standard library does not tell about a file.

A reader for exactly that path through the structure (RFC 5280 4.1): Certificate -> tbsCertificate -> validity -> notAfter.
"""

from __future__ import annotations

import calendar
import re
import ssl

from kvcm.config.errors import SettingsError

MAX_CERTIFICATES = 16
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_UNREADABLE = "A certificate in 'kvcm.tls.cert_file' cannot be read."


def first_expiry_s(chain: bytes) -> int:
    """Unix time at which the first of the certificates in this PEM text expires. Raises SettingsError."""
    found = _PEM.findall(chain.decode("ascii", "replace"))
    if not 0 < len(found) <= MAX_CERTIFICATES:
        raise SettingsError(f"'kvcm.tls.cert_file' must hold 1 to {MAX_CERTIFICATES} certificates.")
    try:
        return min(_not_after(ssl.PEM_cert_to_DER_cert(text)) for text in found)
    except (ValueError, IndexError):
        raise SettingsError(_UNREADABLE) from None


def _not_after(der: bytes) -> int:
    _, certificate, _ = _element(der, _SEQUENCE)
    _, body, _ = _element(certificate, _SEQUENCE)
    if body[0] == _VERSION:
        _, _, body = _element(body)
    for _ in ("serialNumber", "signature", "issuer"):
        _, _, body = _element(body)
    _, validity, _ = _element(body, _SEQUENCE)
    _, _, rest = _element(validity)
    tag, text, _ = _element(rest)
    return _seconds(tag, text.decode("ascii"))


def _element(data: bytes, wanted: int | None = None) -> tuple[int, bytes, bytes]:
    """(tag, content, what follows) of the first element."""
    tag, size, start = data[0], data[1], 2
    if size & 0x80:
        length = size & 0x7F
        if not 0 < length <= 4:
            raise ValueError("length")
        start += length
        size = int.from_bytes(data[2:start], "big")
    if (wanted is not None and tag != wanted) or len(data) < start + size:
        raise ValueError("structure")
    return tag, data[start : start + size], data[start + size :]


def _seconds(tag: int, text: str) -> int:
    digits = text.removesuffix("Z")
    if not digits.isdigit() or tag not in (_UTC_TIME, _GENERALIZED_TIME) or len(digits) != (12 if tag == _UTC_TIME else 14):
        raise ValueError("time")
    if tag == _UTC_TIME:
        digits = ("20" if digits < "50" else "19") + digits
    numbers = [int(digits[:4]), *(int(digits[at : at + 2]) for at in range(4, 14, 2))]
    return calendar.timegm((*numbers, 0, 0, 0))
