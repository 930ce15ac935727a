"""Secrets inside URIs, hidden: `redis://user:pw@host/?auth=x` -> `redis://***@host/?auth=***`. Total: any text goes in, no error comes out."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
# Up to the last "@" before the query: a password may hold a "/" or another "@".
_USER: Final = re.compile(r"(?<=://)[^?#\s]*@")
_PARAMETER: Final = re.compile(r"([?&;](?:auth|password|passwd|pwd|token|secret|access_key|secret_key)=)[^&;#\s]+", re.IGNORECASE)


def redact_uri(text: str) -> str:
    """The text without user, password and secret parameters of the URIs in it. Idempotent."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", _USER.sub(f"{HIDDEN}@", text))
