"""The `Authorization` header (wire contract 3.6): from text to what the caller offers. Pure, and the same for HTTP and gRPC.

Outer blanks do not count; the scheme's case does not either; a token with white space in it is malformed. Basic credentials are read as RFC 7617 says.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from enum import Enum

MAX_HEADER_CHARS = 8192
_FORM = re.compile(rb"[ \t]*([^\s]+)[ \t]+([^\s]+)[ \t]*\Z")


class NoOffer(Enum):
    """Why a header offers nothing."""

    MISSING = "missing"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class BearerOffer:
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class BasicOffer:
    user: str
    password: str = field(repr=False)


Offer = NoOffer | BearerOffer | BasicOffer


def parse_authorization(value: bytes | None) -> Offer:
    """`value`: the header as it came; None without one. An empty header is malformed."""
    if value is None:
        return NoOffer.MISSING
    if len(value) > MAX_HEADER_CHARS:
        return NoOffer.MALFORMED
    found = _FORM.match(value)
    if found is None:
        return NoOffer.MALFORMED
    scheme, rest = found[1].lower(), found[2]
    if scheme == b"bearer":
        return BearerOffer(rest)
    if scheme == b"basic":
        return _basic(rest)
    return NoOffer.MALFORMED


def _basic(text: bytes) -> Offer:
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        return NoOffer.MALFORMED
    return BasicOffer(user, password) if colon and user else NoOffer.MALFORMED
