"""Secrets out of texts that are shown: access log, payloads, logs, error messages. Total: any text goes in, no error comes out.

`redact_uri` is for texts whose secrets are in URIs: `redis://user:pw@host/?auth=x` -> `redis://***@host/?auth=***`. `redact` is for texts of any kind: it
also hides values after names that mean a secret (in JSON texts and `name=value` texts) and what follows `Bearer` or `Basic`. Both hide too much rather
than too little.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
# Up to the last "@" before the query: a password may hold a "/" or another "@".
_USER: Final = re.compile(r"(?<=://)[^?#\s]*@")
_QUOTED_USER: Final = re.compile(r"(?<=://)[^?#\s\"'\\]*@")  # the same inside a JSON text: not beyond the URI's own quotes
_PARAMETER: Final = re.compile(r"([?&;](?:auth|password|passwd|pwd|token|secret|access_key|secret_key)=)[^&;#\s]+", re.IGNORECASE)
_NAME: Final = r"[A-Za-z0-9_.\-]*(?:(?:password|passwd|pwd|secret|credential|access_?key|private_?key|api_?key|authorization)[A-Za-z0-9_\-]*|tokens?)"
_SECRET_NAME: Final = re.compile(rf"^(?:{_NAME}|auth)$", re.IGNORECASE)
# A JSON member, also inside a text that is JSON inside JSON, where quotes have backslashes before them. A text ends at a quote like its first one.
_MEMBER: Final = re.compile(
    rf'(?P<head>\\*"{_NAME}\\*"\s*:\s*)(?:(?P<quote>(?P<depth>\\*)")(?:(?!(?<!\\)(?P=depth)").)*|\[[^\]]*|[^,}}\]\s"\\]+)', re.IGNORECASE | re.DOTALL
)
_PAIR: Final = re.compile(rf"(?P<head>(?<![A-Za-z0-9_.\-])(?:{_NAME}|auth)\s*=\s*)[^&\s,;\"'\\]+", re.IGNORECASE)
_SCHEME: Final = re.compile(r"(?P<head>\b(?:Bearer|Basic)\s+)[^\s,;\"'\\]+", re.IGNORECASE)
# No secret is found in a text without one of these, or an "@".
_HINT: Final = re.compile(r"pass|pwd|secret|cred|key|auth|token|bearer|basic", re.IGNORECASE)


def redact_uri(text: str) -> str:
    """The text without user, password and secret parameters of the URIs in it. Idempotent."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", _USER.sub(f"{HIDDEN}@", text))


def is_secret_name(name: str) -> bool:
    """Does a field of this name hold a secret? Block keys, token ids and tag keys do not."""
    return _SECRET_NAME.match(name) is not None


def redact(text: str) -> str:
    """The text with its secrets hidden. Quadratic in its length at worst; meant for texts of at most about a thousand characters."""
    if "@" not in text and _HINT.search(text) is None:
        return text  # most texts: one look
    if "://" in text:
        text = _QUOTED_USER.sub(f"{HIDDEN}@", text)
    if '"' in text:
        text = _MEMBER.sub(lambda found: found["head"] + (f"{found['quote']}{HIDDEN}" if found["quote"] else HIDDEN), text)
    if "=" in text:
        text = _PAIR.sub(rf"\g<head>{HIDDEN}", text)
    return _SCHEME.sub(rf"\g<head>{HIDDEN}", text)
