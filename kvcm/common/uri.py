"""Location URIs: `<scheme>://[<user>@]<host>[:<port>][<path>][?<k>=<v>[&...]]` (wire contract 6.1).

Parsing is total: a text is either a `Uri` or an `InvalidUri` error; a `size` that is not a plain decimal number is an error and never 0.
Nothing is percent-encoded on either side; parameters print in ascending key order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcm.common.errors import InvalidArgument

MAX_URI_CHARS = 4096


class InvalidUri(InvalidArgument):
    pass


@dataclass(frozen=True, slots=True)
class Uri:
    scheme: str
    host: str
    path: str = ""
    params: dict[str, str] = field(default_factory=dict)
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user is not None else ""
        port = f":{self.port}" if self.port is not None else ""
        query = "&".join(f"{key}={self.params[key]}" for key in sorted(self.params))
        return f"{self.scheme}://{user}{self.host}{port}{self.path}" + (f"?{query}" if query else "")

    def size(self) -> int:
        """Bytes of the block part behind this URI, from its `size` parameter."""
        return self._number("size")

    def block_index(self) -> int:
        """Slot inside a packed file (`blkid`), 0 when the file holds one block."""
        return self._number("blkid") if "blkid" in self.params else 0

    def _number(self, name: str) -> int:
        text = self.params.get(name, "")
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            raise InvalidUri(f"parameter {name!r} of a location URI must be a non-negative decimal number")
        return int(text)


def parse_uri(text: str) -> Uri:
    """Read one URI; raises `InvalidUri` with a sentence that does not repeat the text (it may hold credentials)."""
    if len(text) > MAX_URI_CHARS:
        raise InvalidUri(f"a URI may have at most {MAX_URI_CHARS} characters")
    scheme, sep, rest = text.partition("://")
    if not sep or not scheme:
        raise InvalidUri("a URI needs a scheme followed by '://'")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    user, at, hostport = authority.rpartition("@")
    host, colon, port_text = hostport.partition(":")
    port: int | None = None
    if colon:
        if not port_text.isascii() or not port_text.isdigit() or int(port_text[:6]) > 65535:
            raise InvalidUri("the port of a URI must be a number from 0 to 65535")
        port = int(port_text)
    params: dict[str, str] = {}
    for item in query.split("&") if query else ():
        key, _, value = item.partition("=")
        params[key] = value
    return Uri(scheme=scheme, host=host, path=slash + path, params=params, user=user if at else None, port=port)
