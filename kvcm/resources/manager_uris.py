"""What a manager's pods are told about etcd and Redis: URIs without any secret, and the Secrets that have to be mounted for the files in them. Pure.

Danger: where two managers meet in one etcd or Redis, they would elect one leader between them and share a registry. So unless the spec says otherwise the
keys of each bear its namespace and name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcm.resources.manager_connections import BlockRedis, EtcdConnection, RedisConnection, StoreTls

if TYPE_CHECKING:
    from kvcm.resources.manager import KVCacheManagerResource, KVCacheManagerSpec

REGISTRY_MOUNT = "/var/lib/kvcm/registry"
"""Where pods mount the volume of a registry that is kept in a file."""
STORES_MOUNT = "/etc/kvcm-stores"
"""Below it pods mount the Secrets of etcd and Redis, each as a folder, because a single file would never change."""

_CA, _CERTIFICATE, _KEY = "ca.crt", "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True)
class SecretMount:
    """`name`: of the volume. `keys`: the entries that must be in the Secret."""

    name: str
    secret: str
    keys: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"{STORES_MOUNT}/{self.name}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A connection, and the part of the spec where it stands."""

    part: str
    connection: EtcdConnection | RedisConnection

    @property
    def login_path(self) -> str:
        return f"{STORES_MOUNT}/{self.part}-login"

    @property
    def tls_path(self) -> str:
        return f"{STORES_MOUNT}/{self.part}-tls"


def elects(spec: KVCacheManagerSpec) -> bool:
    """Can there be several pods, of which one leads?"""
    return spec.coordination.type != "memory"


def registry_type(spec: KVCacheManagerSpec) -> str:
    """memory, file, etcd or redis."""
    return spec.registry.type or spec.coordination.type


ALONE = "memory"


def coordination_place(resource: KVCacheManagerResource) -> str:
    """Which election the pods take part in: its kind and name without blanks, then the endpoints, each with a blank before it."""
    place = _coordination(resource.spec)
    if place is None:
        return ALONE
    meta, connection = resource.metadata, place.connection
    if isinstance(connection, EtcdConnection):
        return " ".join((f"etcd:{_prefix(connection, resource)}", *connection.endpoints))
    name = f"redis:{connection.cluster_name or f'{meta.namespace}.{meta.name}'}:{connection.database}"
    if connection.sentinel is not None:
        return " ".join((f"{name}:{connection.sentinel.master_name}", *connection.sentinel.addresses))
    return f"{name} {connection.address}"


def coordination_uri(resource: KVCacheManagerResource) -> str:
    place = _coordination(resource.spec)
    return _uri(place, resource) if place is not None else "memory://"


def registry_uri(resource: KVCacheManagerResource) -> str:
    """Empty: in memory."""
    place = _registry(resource.spec)
    if place is not None:
        return _uri(place, resource)
    return f"local://{REGISTRY_MOUNT}/{resource.spec.registry.path}" if resource.spec.registry.type == "file" else ""


def metadata_uri(resource: KVCacheManagerResource) -> str:
    """Empty: there is no Redis for block metadata."""
    place = _metadata(resource.spec)
    return _uri(place, resource) if place is not None else ""


def secret_mounts(spec: KVCacheManagerSpec) -> tuple[SecretMount, ...]:
    """In a fixed order; a connection that several parts of the spec use is mounted once."""
    places = {place.part: place for place in (_coordination(spec), _registry(spec), _metadata(spec)) if place is not None}
    return tuple(mount for place in places.values() for mount in _mounts(place))


def _coordination(spec: KVCacheManagerSpec) -> _Place | None:
    connection = spec.coordination.etcd or spec.coordination.redis
    return _Place("coordination", connection) if connection is not None else None


def _registry(spec: KVCacheManagerSpec) -> _Place | None:
    if registry_type(spec) not in ("etcd", "redis"):
        return None
    connection = spec.registry.etcd or spec.registry.redis
    return _Place("registry", connection) if connection is not None else _coordination(spec)


def _metadata(spec: KVCacheManagerSpec) -> _Place | None:
    if spec.metadata_backend.type != "redis":
        return None
    connection = spec.metadata_backend.redis
    return _Place("metadata", connection) if connection is not None else _coordination(spec)


def _mounts(place: _Place) -> Iterator[SecretMount]:
    credentials, tls = place.connection.credentials, place.connection.tls
    if credentials is not None:
        keys = [key for key in (credentials.username_key, credentials.password_key) if key is not None]
        yield SecretMount(f"{place.part}-login", credentials.secret_name, tuple(keys))
    if tls is not None and tls.secret_name is not None:
        yield SecretMount(f"{place.part}-tls", tls.secret_name, (_CA, _CERTIFICATE, _KEY) if tls.client_certificate else (_CA,))


def _uri(place: _Place, resource: KVCacheManagerResource) -> str:
    connection = place.connection
    return _etcd_uri(place, connection, resource) if isinstance(connection, EtcdConnection) else _redis_uri(place, connection, resource)


def _prefix(etcd: EtcdConnection, resource: KVCacheManagerResource) -> str:
    return etcd.prefix or f"kvcm/{resource.metadata.namespace}/{resource.metadata.name}"


def _etcd_uri(place: _Place, etcd: EtcdConnection, resource: KVCacheManagerResource) -> str:
    options: dict[str, str] = {}
    if etcd.tls is not None:
        options["tls"] = "true"
        options |= _tls_files(place, etcd.tls, ("ca", "cert", "key"))
        if etcd.tls.server_name is not None:
            options["server_name"] = etcd.tls.server_name
    if etcd.credentials is not None:
        options["username_file"] = f"{place.login_path}/{etcd.credentials.username_key}"
        options["password_file"] = f"{place.login_path}/{etcd.credentials.password_key}"
    return f"etcd://{','.join(etcd.endpoints)}/{_prefix(etcd, resource)}{_query(options)}"


def _redis_uri(place: _Place, redis: RedisConnection, resource: KVCacheManagerResource) -> str:
    meta = resource.metadata
    options = {"cluster_name": redis.cluster_name or f"{meta.namespace}.{meta.name}"}
    if redis.database:
        options["db"] = str(redis.database)
    if redis.credentials is not None:
        if redis.credentials.username_key is not None:
            options["username_file"] = f"{place.login_path}/{redis.credentials.username_key}"
        options["password_file"] = f"{place.login_path}/{redis.credentials.password_key}"
    if redis.tls is not None:
        options |= _tls_files(place, redis.tls, ("tls_ca_file", "tls_cert_file", "tls_key_file"))
    scheme = "redis" if redis.tls is None else "rediss"
    if redis.sentinel is not None:
        return f"{scheme}+sentinel://{','.join(redis.sentinel.addresses)}/{redis.sentinel.master_name}{_query(options)}"
    if isinstance(redis, BlockRedis) and redis.cluster is not None:
        return f"{scheme}-cluster://{','.join(redis.cluster.addresses)}/{_query(options)}"
    return f"{scheme}://{redis.address}/{_query(options)}"


def _tls_files(place: _Place, tls: StoreTls, names: tuple[str, str, str]) -> dict[str, str]:
    if tls.secret_name is None:
        return {}
    entries = (_CA, _CERTIFICATE, _KEY) if tls.client_certificate else (_CA,)
    return {name: f"{place.tls_path}/{entry}" for name, entry in zip(names, entries, strict=False)}


def _query(options: dict[str, str]) -> str:
    return "?" + "&".join(f"{name}={value}" for name, value in options.items()) if options else ""
