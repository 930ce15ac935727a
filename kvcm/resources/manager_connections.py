"""How a KVCacheManager reaches etcd and Redis: parts of its spec. Secrets are only named here, never held.

Danger: everything here becomes part of a URI that nobody percent-encodes (`manager_uris`), so characters that end a part of one are refused; and of a URI
that may have 4096 characters, so lists and texts are short.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from kvcm.resources.base import SERVER_NAME, Model, ResourceName
from kvcm.resources.manager_security import SECRET_KEY

MAX_ENDPOINTS = 16
MAX_DATABASE = 65_535
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_ENDPOINT = rf"^({_HOST}|\[[0-9A-Fa-f:.]+\]):{_PORT}$"
_PREFIX = r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"
_WORD = r"^[A-Za-z0-9._-]+$"

PATTERN_SENTENCES = {
    _ENDPOINT: "must be a host and a port, such as etcd-0.etcd:2379, without a scheme; an IPv6 address stands in brackets",
    _PREFIX: "must consist of letters, digits, '.', '-' and '_', and of '/' between them",
    _WORD: "must consist of letters, digits, '.', '-' and '_'",
}

CERTIFICATE_SENTENCE = "secretName must be set when clientCertificate is true"
ADDRESS_SENTENCE = "set exactly one of address, sentinel"
PLACE_SENTENCE = "set exactly one of address, sentinel, cluster"
DATABASE_SENTENCE = "database must be 0, the only one of a Redis Cluster"

Endpoint = Annotated[str, StringConstraints(max_length=180, pattern=_ENDPOINT)]
_Entry = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=SECRET_KEY)]
Endpoints = Annotated[tuple[Endpoint, ...], Field(min_length=1, max_length=MAX_ENDPOINTS, strict=False, json_schema_extra={"x-kubernetes-list-type": "atomic"})]


class StoreTls(Model):
    """TLS towards a store. Renewed certificates in the Secret count without a restart."""

    secret_name: ResourceName | None = Field(
        default=None,
        description="Secret with ca.crt, by which the store's certificate is checked, and with tls.crt and tls.key where clientCertificate is true. "
        "Unset: the authorities that the image trusts.",
    )
    client_certificate: bool = Field(default=False, description="Present tls.crt of the Secret to the store (mutual TLS).")

    @model_validator(mode="after")
    def _certificate_from_secret(self) -> StoreTls:
        if self.client_certificate and self.secret_name is None:
            raise ValueError(CERTIFICATE_SENTENCE)
        return self


class EtcdTls(StoreTls):
    """TLS towards etcd. Renewed certificates in the Secret count without a restart."""

    server_name: Annotated[str, StringConstraints(max_length=253, pattern=SERVER_NAME)] | None = Field(
        default=None, description="The name in etcd's certificates, where it is not the endpoint's."
    )


class EtcdCredentials(Model):
    """User and password of etcd. They are read at each login, so that a changed Secret counts without a restart."""

    secret_name: ResourceName = Field(description="Name of the Secret, for example of type kubernetes.io/basic-auth.")
    username_key: _Entry = Field(default="username", description="Key of the user's name within it.")
    password_key: _Entry = Field(default="password", description="Key of the password within it.")


class RedisCredentials(Model):
    """Password of Redis. It is read for each connection, so that a changed Secret counts without a restart."""

    secret_name: ResourceName = Field(description="Name of the Secret.")
    username_key: _Entry | None = Field(default=None, description="Key of the user's name within it; unset: the default user.")
    password_key: _Entry = Field(default="password", description="Key of the password within it.")


class EtcdConnection(Model):
    """An etcd, 3.4 or newer."""

    endpoints: Endpoints = Field(description="Its members, host:port each.")
    prefix: Annotated[str, StringConstraints(max_length=256, pattern=_PREFIX)] | None = Field(
        default=None, description="All keys lie below it; kvcm/NAMESPACE/NAME when unset. The user needs a role that may read and write there."
    )
    credentials: EtcdCredentials | None = Field(default=None, description="User and password; none when unset.")
    tls: EtcdTls | None = Field(default=None, description="TLS; plain text when unset.")


class RedisSentinel(Model):
    """Sentinels, which say where the master is."""

    addresses: Endpoints = Field(description="The sentinels, host:port each.")
    master_name: Annotated[str, StringConstraints(max_length=128, pattern=_WORD)] = Field(description="What they call the master.")


class RedisConnection(Model):
    """A Redis, 5 or newer, but no Redis Cluster. It must not evict keys (maxmemory-policy noeviction)."""

    address: Endpoint | None = Field(default=None, description="The server, host:port.")
    sentinel: RedisSentinel | None = Field(default=None, description="Instead of address: sentinels, which say where the master is.")
    database: Annotated[int, Field(ge=0, le=MAX_DATABASE)] = Field(
        default=0, description="Number of the database. Managers with equal instance ids need different ones."
    )
    cluster_name: Annotated[str, StringConstraints(max_length=128, pattern=_WORD)] | None = Field(
        default=None, description="Managers with the same name share leases and a registry; NAMESPACE.NAME when unset."
    )
    credentials: RedisCredentials | None = Field(default=None, description="User and password; none when unset.")
    tls: StoreTls | None = Field(default=None, description="TLS; plain text when unset.")

    @model_validator(mode="after")
    def _one_place(self) -> RedisConnection:
        if (self.address is None) == (self.sentinel is None):
            raise ValueError(ADDRESS_SENTENCE)
        return self


class RedisCluster(Model):
    """Nodes of a Redis Cluster, which know the others."""

    addresses: Endpoints = Field(description="Some of its nodes, host:port each.")


class BlockRedis(RedisConnection):
    """A Redis, 5 or newer, or a Redis Cluster. It must not evict keys (maxmemory-policy noeviction)."""

    cluster: RedisCluster | None = Field(default=None, description="Instead of address: a Redis Cluster, where one Redis is too small.")

    @model_validator(mode="after")
    def _one_place(self) -> BlockRedis:
        if sum(place is not None for place in (self.address, self.sentinel, self.cluster)) != 1:
            raise ValueError(PLACE_SENTENCE)
        if self.cluster is not None and self.database:
            raise ValueError(DATABASE_SENTENCE)
        return self
