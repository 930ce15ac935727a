"""Redis URIs (wire contract 1.4) -> where to connect and as whom.

    redis://[[user:]password@]host:port/?auth=..&db=..&cluster_name=..&timeout_ms=..        rediss:// is the same over TLS
    redis+sentinel://[[user:]password@]host:port[,host:port...]/<master name>?...   rediss+sentinel:// is the same over TLS, to both
    redis-cluster://[[user:]password@]host:port[,host:port...]/?...                         rediss-cluster:// is the same over TLS; for block metadata only

`username_file` and `password_file` name files instead of a login; they are read for each connection, so that a rotated Secret counts without a restart (ours,
not upstream's). Nothing is percent-decoded, as upstream. A parameter that nobody knows is refused: it would be ignored otherwise (design D10). Messages never
repeat the URI, which may hold a password.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kvcm.common.errors import InvalidArgument

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
DEFAULT_TIMEOUT_MS = 2_000
_MAX_CHARS = 4096
_MAX_TIMEOUT_MS = 600_000
_COMMON = frozenset(
    {"auth", "db", "cluster_name", "timeout_ms", "client_max_pool_size", "client_min_pool_size", "tls_ca_file", "tls_cert_file", "tls_key_file"}
    | {"username_file", "password_file"}
)
_CLUSTER_SCHEMES = ("redis-cluster", "rediss-cluster")
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_SCHEMES = ("redis", "rediss", *_SENTINEL_SCHEMES, *_CLUSTER_SCHEMES)

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """`addresses`: one Redis, or the sentinels when `master` is set, or some nodes of a Redis Cluster. `params`: those that are not the connection's own."""

    addresses: tuple[Address, ...]
    master: str = ""
    cluster: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    cluster_name: str = ""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    username_file: str = ""
    password_file: str = field(default="", repr=False)
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """For logs and messages: no secrets."""
        where = ",".join(f"{host}:{port}" for host, port in self.addresses)
        if self.cluster:
            return f"the cluster of {where}"
        return f"master '{self.master}' of the sentinels {where}" if self.master else where

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000


def place_of(target: RedisTarget) -> tuple[object, ...]:
    """Which database that is, whoever asks for it and however."""
    return target.addresses, target.master, target.db, target.tls


def is_redis_uri(uri: str) -> bool:
    return uri.partition("://")[0] in _SCHEMES


def parse_target(uri: str, known: Collection[str] = (), *, cluster: bool = False) -> RedisTarget:
    """`known`: further parameters that the caller understands. `cluster`: whether it can use a Redis Cluster. Raises InvalidArgument."""
    if len(uri) > _MAX_CHARS or any(ord(char) < 33 for char in uri):
        raise InvalidArgument("a Redis URI may have at most 4096 characters, without blanks")
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise InvalidArgument(f"a Redis URI begins with one of {', '.join(f'{name}://' for name in _SCHEMES)}")
    sentinel, clustered = scheme in _SENTINEL_SCHEMES, scheme in _CLUSTER_SCHEMES
    if clustered and not cluster:
        raise InvalidArgument("a Redis Cluster holds block metadata only; keep leadership and the registry in etcd, or in one Redis (redis://)")
    rest, _, query = rest.partition("?")
    login, at, place = rest.rpartition("@")
    hosts, _, path = place.partition("/")
    if path and not sentinel:
        raise InvalidArgument("a Redis URI has no path; name the database by the parameter db")
    if sentinel and (not path or "/" in path):
        raise InvalidArgument("a Sentinel URI needs the name of the master as its path: redis+sentinel://host:port/<master>")
    params = _params(query, _COMMON.union(known))
    user, colon, password = login.partition(":")
    if at and not colon:
        user, password = "", login
    addresses = tuple(_address(item, SENTINEL_PORT if sentinel else DEFAULT_PORT) for item in hosts.split(","))
    if len(addresses) > 1 and not (sentinel or clustered):
        raise InvalidArgument("a Redis URI names one host; several hosts are for sentinels (redis+sentinel://) and for a Redis Cluster (redis-cluster://)")
    if params.get("username_file") and not params.get("password_file"):
        raise InvalidArgument("a Redis URI with username_file needs password_file too")
    if params.get("password_file") and (at or "auth" in params):
        raise InvalidArgument("a Redis URI has a password in it or names a file with it, not both")
    db = number(params, "db", 0, 0, 1_000_000)
    if db and clustered:
        raise InvalidArgument("a Redis Cluster has one database, with the number 0")
    return RedisTarget(
        addresses=addresses,
        master=path if sentinel else "",
        cluster=clustered,
        user=user,
        password=params.get("auth", password),
        db=db,
        cluster_name=params.get("cluster_name", ""),
        timeout_ms=number(params, "timeout_ms", DEFAULT_TIMEOUT_MS, 1, _MAX_TIMEOUT_MS),
        tls=scheme.startswith("rediss"),
        tls_ca_file=params.get("tls_ca_file", ""),
        tls_cert_file=params.get("tls_cert_file", ""),
        tls_key_file=params.get("tls_key_file", ""),
        username_file=params.get("username_file", ""),
        password_file=params.get("password_file", ""),
        params={key: value for key, value in params.items() if key not in _COMMON},
    )


def number(params: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A whole number from the parameters of a URI. Raises InvalidArgument."""
    text = params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 12 or not low <= int(text) <= high:
        raise InvalidArgument(f"the parameter {name} of a Redis URI must be a whole number from {low} to {high}")
    return int(text)


def _params(query: str, known: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in query.split("&") if query else ():
        name, _, value = item.partition("=")
        if name not in known:
            shown = name if name.isidentifier() and len(name) <= 40 else "with a strange name"
            raise InvalidArgument(f"a Redis URI has no parameter {shown}; known are {', '.join(sorted(known))}")
        found[name] = value
    return found


def _address(text: str, default_port: int) -> Address:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or (rest and colon != ":"):
            raise InvalidArgument("a Redis URI has an IPv6 address that does not end with ]")
    else:
        host, colon, port = text.partition(":")
    if not host:
        raise InvalidArgument("a Redis URI needs a host")
    if not colon:
        return host, default_port
    if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= 65535:
        raise InvalidArgument("the port of a Redis URI must be a number from 1 to 65535")
    return host, int(port)


def cluster_name(uri: str) -> str:
    """The cluster that a Redis URI names; empty for none and for URIs of other kinds. Raises InvalidArgument."""
    return parse_target(uri).cluster_name if is_redis_uri(uri) else ""
