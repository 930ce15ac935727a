"""Rules across fields, as CEL for the API server.

The one list of them. Each has a twin in Python (named in `twin`), which is what `kvcm apply` and the operator trust; a server that is too old
for CEL gets a schema without them (`schema.crd(..., cel=False)`). Lists and texts that a rule looks at are bounded in the models, because the
API server refuses rules whose worst case is too expensive.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcm.resources.duration import LONGEST, TOO_LONG
from kvcm.resources.manager import MANAGER_NAME_SENTENCE, MAX_MANAGER_NAME_CHARS, REGISTRY_SENTENCE, SEVERAL_SENTENCE, no_place
from kvcm.resources.manager_connections import ADDRESS_SENTENCE, CERTIFICATE_SENTENCE, DATABASE_SENTENCE, PLACE_SENTENCE
from kvcm.resources.manager_security import SECRET_SENTENCE
from kvcm.resources.manager_stores import (
    LEASE_SENTENCE,
    LONGEST_LEASE,
    SHORTEST_LEASE,
    VOLUME_SENTENCE,
    not_without,
    only_with,
)
from kvcm.resources.pod import OWN_KEYS_SENTENCE, OWN_PREFIXES

_BACKENDS = ("nfs", "threeFS", "vcnsThreeFS", "mooncake", "tairMemPool", "dummy")
_VOLUMES = ("pvc", "nfs", "hostPath")


@dataclass(frozen=True, slots=True)
class CelRule:
    """`path` is the schema node that carries the rule ("" is the object, `[]` an element of a list); `self` in the expression is the value there.

    `transition` rules compare with oldSelf; their twins stand in `transitions.py`.
    """

    kind: str
    path: str
    expression: str
    message: str
    twin: str
    transition: bool = False


def _exactly_one(fields: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"has(self.{name})" for name in fields) + "].filter(x, x).size() == 1"


def _unchanged(field: str) -> str:
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


def _no_parent_steps(field: str) -> str:
    return f"!('/' + self.{field} + '/').contains('/../')"


NAME_FIXED = "name cannot change: locations and engines refer to it; make a new resource"
MANAGER_FIXED = "managerRef cannot change; make a new resource for the other manager"
KIND_FIXED = "the kind of a storage cannot change; make a new resource with another name"


def _identity(kind: str) -> list[CelRule]:
    return [
        CelRule(kind, "spec", _unchanged("name"), NAME_FIXED, "transitions.transition_problems", True),
        CelRule(kind, "spec", "self.managerRef.name == oldSelf.managerRef.name", MANAGER_FIXED, "transitions.transition_problems", True),
    ]


def _volume(kind: str, path: str) -> list[CelRule]:
    return [
        CelRule(kind, path, _exactly_one(_VOLUMES), f"set exactly one of {', '.join(_VOLUMES)}", "Volume._exactly_one"),
        *_paths(kind, ((f"{path}.nfs", "path"), (f"{path}.hostPath", "path"))),
    ]


def _paths(kind: str, places: tuple[tuple[str, str], ...]) -> list[CelRule]:
    return [CelRule(kind, path, _no_parent_steps(field), f"{field} must not contain '..' steps", "base._no_parent_steps") for path, field in places]


_PATHS = (
    ("spec.nfs", "rootPath"),
    ("spec.dummy", "rootPath"),
    ("spec.threeFS", "mountpoint"),
    ("spec.threeFS", "rootDir"),
    ("spec.vcnsThreeFS", "mountpoint"),
    ("spec.vcnsThreeFS", "rootDir"),
)
_ETCD_PLACES = ("spec.coordination.etcd", "spec.registry.etcd")
_REDIS_PLACES = ("spec.coordination.redis", "spec.registry.redis")
_BLOCKS_PLACE = "spec.metadataBackend.redis"


def _stores(kind: str) -> list[CelRule]:
    """Leases, registry, block metadata, and the connections to where they are."""
    tls = [f"{place}.tls" for place in (*_ETCD_PLACES, *_REDIS_PLACES, _BLOCKS_PLACE)]
    return [
        CelRule(
            kind,
            "spec",
            "self.replicas <= 1 || self.coordination.type != 'memory'",
            SEVERAL_SENTENCE,
            "KVCacheManagerSpec._several_can_share",
        ),
        CelRule(
            kind,
            "spec",
            "self.replicas <= 1 || !has(self.registry.type) || self.registry.type in ['etcd', 'redis']",
            REGISTRY_SENTENCE,
            "KVCacheManagerSpec._several_can_share",
        ),
        *[
            CelRule(
                kind,
                "spec",
                f"!has(self.registry.type) || self.registry.type != '{store}' || has(self.registry.{store}) || self.coordination.type == '{store}'",
                no_place("registry", store),
                "KVCacheManagerSpec._connections",
            )
            for store in ("etcd", "redis")
        ],
        CelRule(
            kind,
            "spec",
            "self.metadataBackend.type != 'redis' || has(self.metadataBackend.redis) || self.coordination.type == 'redis'",
            no_place("metadataBackend", "redis"),
            "KVCacheManagerSpec._connections",
        ),
        CelRule(
            kind,
            "spec.coordination",
            f"duration(self.leaseDuration) >= duration('{SHORTEST_LEASE}') && duration(self.leaseDuration) <= duration('{LONGEST_LEASE}')",
            LEASE_SENTENCE,
            "manager_stores._lease",
        ),
        *[
            CelRule(kind, "spec.coordination", f"(self.type == '{store}') == has(self.{store})", only_with(store, store), "Coordination._place_with_type")
            for store in ("etcd", "redis")
        ],
        CelRule(
            kind,
            "spec.registry",
            "(has(self.type) && self.type == 'file') == has(self.volume)",
            VOLUME_SENTENCE,
            "RegistryStore._place_with_type",
        ),
        *[
            CelRule(
                kind,
                "spec.registry",
                f"!has(self.{store}) || (has(self.type) && self.type == '{store}')",
                not_without(store, store),
                "RegistryStore._place_with_type",
            )
            for store in ("etcd", "redis")
        ],
        CelRule(
            kind,
            "spec.metadataBackend",
            "!has(self.redis) || self.type == 'redis'",
            not_without("redis", "redis"),
            "ManagerMetadata._redis_with_type",
        ),
        CelRule(
            kind,
            "spec.metadataBackend",
            "!has(self.writeMode) || self.type == 'redis'",
            not_without("writeMode", "redis"),
            "ManagerMetadata._redis_with_type",
        ),
        *[CelRule(kind, place, "has(self.address) != has(self.sentinel)", ADDRESS_SENTENCE, "RedisConnection._one_place") for place in _REDIS_PLACES],
        CelRule(kind, _BLOCKS_PLACE, _exactly_one(("address", "sentinel", "cluster")), PLACE_SENTENCE, "BlockRedis._one_place"),
        CelRule(kind, _BLOCKS_PLACE, "!has(self.cluster) || self.database == 0", DATABASE_SENTENCE, "BlockRedis._one_place"),
        *[CelRule(kind, place, "!self.clientCertificate || has(self.secretName)", CERTIFICATE_SENTENCE, "StoreTls._certificate_from_secret") for place in tls],
    ]


_PORTS = "[self.metaGrpc, self.metaHttp, self.adminGrpc, self.adminHttp]"

_MANAGER: tuple[CelRule, ...] = (
    CelRule(
        "KVCacheManager",
        "",
        f"self.metadata.name.size() <= {MAX_MANAGER_NAME_CHARS} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        MANAGER_NAME_SENTENCE,
        "KVCacheManagerResource._name_for_services",
    ),
    *_stores("KVCacheManager"),
    CelRule("KVCacheManager", "spec.adminToken", "(self.type == 'secret') == has(self.secret)", SECRET_SENTENCE, "AdminToken._secret_with_type"),
    CelRule("KVCacheManager", "spec.registry", "!self.path.endsWith('/')", "path must name a file, not a directory", "manager_stores._no_directory"),
    *_paths("KVCacheManager", (("spec.registry", "path"),)),
    *_volume("KVCacheManager", "spec.registry.volume"),
    CelRule(
        "KVCacheManager",
        "spec.service.ports",
        f"{_PORTS}.all(port, {_PORTS}.exists_one(other, other == port))",
        "the four ports must differ",
        "ServicePorts._all_different",
    ),
    CelRule(
        "KVCacheManager",
        "spec.tolerations[]",
        "self.operator != 'Exists' || !has(self.value)",
        "value must be unset when operator is Exists",
        "Toleration._as_kubernetes_wants",
    ),
    CelRule(
        "KVCacheManager",
        "spec.tolerations[]",
        "self.operator != 'Equal' || has(self.key)",
        "key must be set when operator is Equal",
        "Toleration._as_kubernetes_wants",
    ),
    CelRule(
        "KVCacheManager",
        "spec.tolerations[]",
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds is only for effect NoExecute",
        "Toleration._as_kubernetes_wants",
    ),
)

_FOREIGN_KEYS = "self.all(key, " + " && ".join(f"!key.startsWith('{prefix}')" for prefix in OWN_PREFIXES) + ")"

RULES: tuple[CelRule, ...] = (
    *_MANAGER,
    *[CelRule("KVCacheManager", path, _FOREIGN_KEYS, OWN_KEYS_SENTENCE, "pod._foreign_keys") for path in ("spec.podLabels", "spec.podAnnotations")],
    *_identity("Storage"),
    CelRule("Storage", "spec", _exactly_one(_BACKENDS), f"set exactly one of {', '.join(_BACKENDS)}", "StorageSpec._exactly_one_backend"),
    CelRule(
        "Storage",
        "spec",
        " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in _BACKENDS),
        KIND_FIXED,
        "transitions.transition_problems",
        True,
    ),
    CelRule(
        "Storage",
        "spec",
        "!has(self.volume) || !(has(self.mooncake) || has(self.tairMemPool))",
        "volume is only for nfs, threeFS, vcnsThreeFS, dummy",
        "StorageSpec._exactly_one_backend",
    ),
    *_volume("Storage", "spec.volume"),
    CelRule(
        "Storage",
        "spec.mooncake",
        "(self.protocol == 'rdma') == has(self.rdmaDevice)",
        "rdmaDevice must be set when protocol is rdma, and only then",
        "MooncakeBackend._device_with_rdma",
    ),
    *_paths("Storage", _PATHS),
    *_identity("InstanceGroup"),
    CelRule(
        "InstanceGroup",
        "spec.storages",
        "self.all(name, self.exists_one(other, other == name))",
        "names a storage twice",
        "InstanceGroupSpec._no_duplicates",
    ),
    CelRule(
        "InstanceGroup",
        "spec.reclaim",
        f"duration(self.delayBeforeDelete) <= duration('{LONGEST}')",
        f"delayBeforeDelete {TOO_LONG}",
        "duration.parse_duration",
    ),
    CelRule(
        "InstanceGroup",
        "spec.metadataIndex.backend",
        "(self.type == 'file') == has(self.uri)",
        "uri must be set when type is file, and only then",
        "MetadataBackend._fields_with_type",
    ),
    CelRule(
        "InstanceGroup",
        "spec.metadataIndex.backend",
        "!has(self.writeMode) || self.type == 'redis'",
        not_without("writeMode", "redis"),
        "MetadataBackend._fields_with_type",
    ),
    CelRule(
        "InstanceGroup",
        "spec.metadataIndex.backend",
        "!has(self.uri) || " + _no_parent_steps("uri"),
        "uri must not contain '..' steps",
        "base._no_parent_steps",
    ),
)


def rules_for(kind: str) -> list[CelRule]:
    return [rule for rule in RULES if rule.kind == kind]
