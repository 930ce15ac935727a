"""Bearer tokens, compared so that the time tells nothing about them.

The tokens themselves are not kept, only keyed hashes of one length. A check hashes what was offered and compares it with every hash in constant time,
without stopping at a match. The key is random per process, so a caller cannot prepare hashes that agree in their first bytes.

Dangers: an early exit, a comparison with `==`, or a look-up in a set would each tell how much of a guess was right.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Sequence

from kvcm.config.errors import SettingsError

MAX_TOKENS = 64
MAX_TOKEN_CHARS = 4096
MIN_SAFE_TOKEN_CHARS = 16
_KEY = secrets.token_bytes(32)


class TokenSet:
    """The tokens of one plane. `accepts` is called for every request."""

    __slots__ = ("_hashes",)

    def __init__(self, tokens: Iterable[bytes] = ()) -> None:
        self._hashes = tuple(_hash(token) for token in tokens)

    def __len__(self) -> int:
        return len(self._hashes)

    def __repr__(self) -> str:
        return f"TokenSet({len(self._hashes)} tokens)"

    def accepts(self, token: bytes) -> bool:
        """Takes the same time whatever the token is, but for its length."""
        offered = _hash(token)
        found = False
        for known in self._hashes:
            found |= hmac.compare_digest(offered, known)
        return found


def parse_token_list(text: str, source: str) -> list[bytes]:
    """Tokens of `kvcm.service.admin_auth_token`: separated by commas, trimmed, empty ones left out (wire contract 3.6).

    `source` names where they come from. Raises SettingsError, which never quotes a token.
    """
    return _checked(text.split(","), source)


def parse_token_file(content: bytes, source: str) -> list[bytes]:
    """Tokens of a file: one a line, or separated by commas. Raises SettingsError also for a file without any."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{source} is not UTF-8 text.") from None
    found = _checked(text.replace("\n", ",").split(","), source)
    if not found:
        raise SettingsError(f"{source} holds no token.")
    return found


def weak_tokens(tokens: Sequence[bytes]) -> int:
    """How many are so short that they can be guessed."""
    return sum(len(token) < MIN_SAFE_TOKEN_CHARS for token in tokens)


def _checked(items: Iterable[str], source: str) -> list[bytes]:
    tokens = list(dict.fromkeys(item.strip() for item in items if item.strip()))
    if len(tokens) > MAX_TOKENS:
        raise SettingsError(f"{source} holds more than {MAX_TOKENS} tokens.")
    # Such a token could never be sent in a header.
    if any(len(token) > MAX_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token for token in tokens):
        raise SettingsError(f"{source} holds a token that is longer than {MAX_TOKEN_CHARS} characters or has other than visible ASCII characters.")
    return [token.encode("ascii") for token in tokens]


def _hash(token: bytes) -> bytes:
    return hmac.digest(_KEY, token, "sha256")
