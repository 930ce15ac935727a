"""Objects and changes that break each rule of `rules.py`, for the tests of the rules: with a CEL library, and on a real API server."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from kvcm.resources.base import API_VERSION
from kvcm.resources.duration import TOO_LONG
from kvcm.resources.manager import MANAGER_NAME_SENTENCE, REGISTRY_SENTENCE, SEVERAL_SENTENCE, no_place
from kvcm.resources.manager_connections import ADDRESS_SENTENCE, CERTIFICATE_SENTENCE, DATABASE_SENTENCE, PLACE_SENTENCE
from kvcm.resources.manager_stores import LEASE_SENTENCE, VOLUME_SENTENCE, not_without, only_with
from kvcm.resources.pod import OWN_KEYS_SENTENCE
from kvcm.resources.rules import KIND_FIXED, MANAGER_FIXED, NAME_FIXED

Json = dict[str, Any]
REF = {"managerRef": {"name": "m"}}
NFS: Json = {**REF, "nfs": {"rootPath": "/a"}}
GROUP: Json = {**REF, "storages": ["a"], "quota": {"total": "1Gi"}}
MOONCAKE: Json = {"localHostname": "h", "metadataConnstring": "etcd://h", "protocol": "tcp", "masterServiceEntry": "h:1"}
THREE_FS: Json = {"mountpoint": "/m", "rootDir": "r"}
VCNS: Json = {**THREE_FS, "remoteHost": "h", "remotePort": 1, "metaStorageUri": "redis://h"}
PVC: Json = {"pvc": {"claimName": "c"}}
ETCD: Json = {"endpoints": ["a:1"]}
REDIS: Json = {"address": "b:1"}
SENTINEL: Json = {"addresses": ["c:1"], "masterName": "m"}
CLUSTER: Json = {"addresses": ["d:1"]}
IN_ETCD: Json = {"type": "etcd", "etcd": ETCD}
IN_REDIS: Json = {"type": "redis", "redis": REDIS}
STEPS = "must not contain '..' steps"


def backend(uri: str) -> Json:
    return {**GROUP, "metadataIndex": {"backend": {"type": "file", "uri": uri}}}


@dataclass(frozen=True, slots=True)
class Case:
    """`broken`: the message of the only rule that the spec breaks, with the path of the rule when several share it; "" for none."""

    kind: str
    spec: Json
    broken: str = ""
    path: str = ""
    name: str = "x"

    def document(self) -> Json:
        return {"apiVersion": API_VERSION, "kind": self.kind, "metadata": {"name": self.name}, "spec": deepcopy(self.spec)}


def _redis(part: str, connection: Json, broken: str = "", inner: str = "") -> Case:
    return Case("KVCacheManager", {part: {"type": "redis", "redis": connection}}, broken, f"spec.{part}.redis{inner}" if broken else "")


def tolerations(**fields: Any) -> Json:
    return {"tolerations": [{"key": "a"}, fields]}


def file_registry(**fields: Any) -> Json:
    return {"registry": {"type": "file", "volume": PVC, **fields}}


MODE = not_without("writeMode", "redis")
_STORES = [
    Case("KVCacheManager", {"replicas": 2}, SEVERAL_SENTENCE),
    Case("KVCacheManager", {"replicas": 9, "coordination": IN_ETCD}),
    Case("KVCacheManager", {"replicas": 2, "coordination": IN_REDIS, "registry": {"type": "redis"}, "metadataBackend": {"type": "redis"}}),
    Case("KVCacheManager", {"replicas": 2, "coordination": IN_ETCD, "registry": {"type": "memory"}}, REGISTRY_SENTENCE),
    Case("KVCacheManager", {"replicas": 2, "coordination": IN_ETCD, **file_registry()}, REGISTRY_SENTENCE),
    Case("KVCacheManager", {"replicas": 1, "coordination": IN_ETCD, **file_registry()}),
    Case("KVCacheManager", {"replicas": 2, "coordination": IN_ETCD, "registry": IN_REDIS}),
    Case("KVCacheManager", {"replicas": 2, "coordination": IN_REDIS, "registry": IN_ETCD}),
    Case("KVCacheManager", {"registry": {"type": "etcd"}}, no_place("registry", "etcd")),
    Case("KVCacheManager", {"coordination": IN_ETCD, "registry": {"type": "redis"}}, no_place("registry", "redis")),
    Case("KVCacheManager", {"coordination": IN_ETCD, "metadataBackend": {"type": "redis"}}, no_place("metadataBackend", "redis")),
    Case("KVCacheManager", {"metadataBackend": {**IN_REDIS, "writeMode": "WriteBehind"}}),
    Case("KVCacheManager", {"metadataBackend": {"writeMode": "WriteThrough"}}, MODE, "spec.metadataBackend"),
    Case("KVCacheManager", {"metadataBackend": {"redis": REDIS}}, not_without("redis", "redis"), "spec.metadataBackend"),
    Case("KVCacheManager", {"registry": {"etcd": ETCD}}, not_without("etcd", "etcd")),
    Case("KVCacheManager", {"registry": {"redis": REDIS}}, not_without("redis", "redis"), "spec.registry"),
    Case("KVCacheManager", {"coordination": {"type": "etcd"}}, only_with("etcd", "etcd")),
    Case("KVCacheManager", {"coordination": {"etcd": ETCD}}, only_with("etcd", "etcd")),
    Case("KVCacheManager", {"coordination": {"type": "redis"}}, only_with("redis", "redis")),
    Case("KVCacheManager", {"coordination": {**IN_ETCD, "redis": REDIS}}, only_with("redis", "redis")),
    Case("KVCacheManager", {"coordination": {"leaseDuration": "1s"}}),
    Case("KVCacheManager", {"coordination": {"leaseDuration": "4m59s1000ms"}}),
    Case("KVCacheManager", {"coordination": {"leaseDuration": "999ms"}}, LEASE_SENTENCE),
    Case("KVCacheManager", {"coordination": {"leaseDuration": "5m1ms"}}, LEASE_SENTENCE),
    *[
        case
        for part in ("coordination", "registry", "metadataBackend")
        for case in (
            _redis(part, {}, PLACE_SENTENCE if part == "metadataBackend" else ADDRESS_SENTENCE),
            _redis(part, {**REDIS, "sentinel": SENTINEL}, PLACE_SENTENCE if part == "metadataBackend" else ADDRESS_SENTENCE),
            _redis(part, {"sentinel": SENTINEL}),
            _redis(part, {"sentinel": SENTINEL, "tls": {}}),
            _redis(part, {**REDIS, "tls": {"secretName": "s", "clientCertificate": True}}),
            _redis(part, {**REDIS, "tls": {"clientCertificate": True}}, CERTIFICATE_SENTENCE, ".tls"),
        )
    ],
    _redis("metadataBackend", {"cluster": CLUSTER, "database": 0, "tls": {}}),
    _redis("metadataBackend", {**REDIS, "cluster": CLUSTER}, PLACE_SENTENCE),
    _redis("metadataBackend", {"cluster": CLUSTER, "database": 1}, DATABASE_SENTENCE),
    *[
        Case("KVCacheManager", {part: {"type": "etcd", "etcd": {**ETCD, "tls": {"clientCertificate": True}}}}, CERTIFICATE_SENTENCE, f"spec.{part}.etcd.tls")
        for part in ("coordination", "registry")
    ],
]
BACKENDS = "set exactly one of nfs, threeFS, vcnsThreeFS, mooncake, tairMemPool, dummy"
VOLUMES = "set exactly one of pvc, nfs, hostPath"
CASES = [
    Case("KVCacheManager", {}),
    Case("KVCacheManager", {}, name="a" * 52),
    Case("KVCacheManager", {}, MANAGER_NAME_SENTENCE, name="a" * 53),
    Case("KVCacheManager", {}, MANAGER_NAME_SENTENCE, name="1a"),
    Case("KVCacheManager", {}, MANAGER_NAME_SENTENCE, name="a.b"),
    Case("KVCacheManager", {"replicas": 0}),
    *_STORES,
    Case("KVCacheManager", file_registry()),
    Case("KVCacheManager", {"registry": {"type": "file"}}, VOLUME_SENTENCE),
    Case("KVCacheManager", {"registry": {"volume": PVC}}, VOLUME_SENTENCE),
    Case("KVCacheManager", {"registry": {"type": "memory", "volume": PVC}}, VOLUME_SENTENCE),
    Case("KVCacheManager", file_registry(path="a/..b/c")),
    Case("KVCacheManager", file_registry(path="a/../c"), f"path {STEPS}", "spec.registry"),
    Case("KVCacheManager", file_registry(path="a/"), "path must name a file, not a directory"),
    Case("KVCacheManager", file_registry(volume={}), VOLUMES, "spec.registry.volume"),
    Case("KVCacheManager", file_registry(volume={**PVC, "hostPath": {"path": "/a"}}), VOLUMES, "spec.registry.volume"),
    Case("KVCacheManager", file_registry(volume={"hostPath": {"path": "/a/.."}}), f"path {STEPS}", "spec.registry.volume.hostPath"),
    Case("KVCacheManager", file_registry(volume={"nfs": {"server": "h", "path": "/../a"}}), f"path {STEPS}", "spec.registry.volume.nfs"),
    Case("KVCacheManager", {"adminToken": {"type": "secret", "secret": {"name": "a"}}, "tls": {"secretName": "b"}}),
    Case("KVCacheManager", {"adminToken": {"type": "none"}}),
    Case("KVCacheManager", {"adminToken": {"type": "secret"}}, "secret must be set when type is secret, and only then"),
    Case("KVCacheManager", {"adminToken": {"secret": {"name": "a"}}}, "secret must be set when type is secret, and only then"),
    Case("KVCacheManager", {"service": {"ports": {"metaGrpc": 1, "metaHttp": 2, "adminGrpc": 3, "adminHttp": 4}}}),
    Case("KVCacheManager", {"service": {"ports": {"metaGrpc": 6492}}}, "the four ports must differ"),
    Case("KVCacheManager", {"service": {"ports": {"metaHttp": 5, "adminGrpc": 5}}}, "the four ports must differ"),
    Case("KVCacheManager", tolerations(operator="Exists")),
    Case("KVCacheManager", tolerations(key="b", value="v", effect="NoExecute", tolerationSeconds=0)),
    Case("KVCacheManager", tolerations(operator="Exists", key="b", value="v"), "value must be unset when operator is Exists"),
    Case("KVCacheManager", tolerations(value="v"), "key must be set when operator is Equal"),
    Case("KVCacheManager", tolerations(key="b", tolerationSeconds=1), "tolerationSeconds is only for effect NoExecute"),
    Case("KVCacheManager", tolerations(key="b", effect="NoSchedule", tolerationSeconds=1), "tolerationSeconds is only for effect NoExecute"),
    Case("KVCacheManager", {"podLabels": {"team": "a"}, "podAnnotations": {"io/kvcm.io": "a"}}),
    Case("KVCacheManager", {"podLabels": {"a": "b", "app.kubernetes.io/name": "x"}}, OWN_KEYS_SENTENCE, "spec.podLabels"),
    Case("KVCacheManager", {"podAnnotations": {"kvcm.io/paused": "x"}}, OWN_KEYS_SENTENCE, "spec.podAnnotations"),
    Case("Storage", NFS),
    Case("Storage", {**REF, "dummy": {"rootPath": "/a/..b/c.."}}),
    Case("Storage", REF, BACKENDS),
    Case("Storage", {**NFS, "dummy": {"rootPath": "/b"}}, BACKENDS),
    Case("Storage", {**NFS, "volume": PVC}),
    Case("Storage", {**REF, "mooncake": MOONCAKE}),
    Case("Storage", {**REF, "mooncake": {**MOONCAKE, "protocol": "rdma", "rdmaDevice": "d"}}),
    Case("Storage", {**REF, "mooncake": {**MOONCAKE, "protocol": "rdma"}}, "rdmaDevice must be set when protocol is rdma, and only then"),
    Case("Storage", {**REF, "mooncake": {**MOONCAKE, "rdmaDevice": "d"}}, "rdmaDevice must be set when protocol is rdma, and only then"),
    Case("Storage", {**REF, "mooncake": MOONCAKE, "volume": PVC}, "volume is only for nfs, threeFS, vcnsThreeFS, dummy"),
    Case("Storage", {**REF, "tairMemPool": {"domain": "d"}, "volume": PVC}, "volume is only for nfs, threeFS, vcnsThreeFS, dummy"),
    Case("Storage", {**NFS, "volume": {}}, VOLUMES, "spec.volume"),
    Case("Storage", {**NFS, "volume": {**PVC, "nfs": {"server": "h", "path": "/p"}}}, VOLUMES, "spec.volume"),
    Case("Storage", {**NFS, "volume": {"hostPath": {"path": "/a/../b"}}}, f"path {STEPS}", "spec.volume.hostPath"),
    Case("Storage", {**NFS, "volume": {"nfs": {"server": "h", "path": "/a/.."}}}, f"path {STEPS}", "spec.volume.nfs"),
    Case("Storage", {**REF, "nfs": {"rootPath": "/.."}}, f"rootPath {STEPS}", "spec.nfs"),
    Case("Storage", {**REF, "dummy": {"rootPath": "/a/../b"}}, f"rootPath {STEPS}", "spec.dummy"),
    Case("Storage", {**REF, "threeFS": THREE_FS}),
    Case("Storage", {**REF, "threeFS": {**THREE_FS, "mountpoint": "/a/.."}}, f"mountpoint {STEPS}", "spec.threeFS"),
    Case("Storage", {**REF, "threeFS": {**THREE_FS, "rootDir": "../a"}}, f"rootDir {STEPS}", "spec.threeFS"),
    Case("Storage", {**REF, "vcnsThreeFS": VCNS}),
    Case("Storage", {**REF, "vcnsThreeFS": {**VCNS, "mountpoint": "/a/.."}}, f"mountpoint {STEPS}", "spec.vcnsThreeFS"),
    Case("Storage", {**REF, "vcnsThreeFS": {**VCNS, "rootDir": "a/.."}}, f"rootDir {STEPS}", "spec.vcnsThreeFS"),
    Case("InstanceGroup", GROUP),
    Case("InstanceGroup", {**GROUP, "storages": ["a", "b", "a"]}, "names a storage twice"),
    Case("InstanceGroup", {**GROUP, "reclaim": {"delayBeforeDelete": "167h59m60s"}}),
    Case("InstanceGroup", {**GROUP, "reclaim": {"delayBeforeDelete": "168h1ms"}}, f"delayBeforeDelete {TOO_LONG}"),
    Case("InstanceGroup", backend("file:///d/..n")),
    Case("InstanceGroup", backend("file:///d/../n"), f"uri {STEPS}"),
    Case("InstanceGroup", {**GROUP, "metadataIndex": {"backend": {"type": "local"}}}),
    Case("InstanceGroup", {**GROUP, "metadataIndex": {"backend": {"type": "redis", "writeMode": "WriteBehind"}}}),
    Case("InstanceGroup", {**GROUP, "metadataIndex": {"backend": {"type": "local", "writeMode": "WriteThrough"}}}, MODE),
    Case("InstanceGroup", {**GROUP, "metadataIndex": {"backend": {"type": "file"}}}, "uri must be set when type is file, and only then"),
    Case("InstanceGroup", {**GROUP, "metadataIndex": {"backend": {"type": "local", "uri": "file:///n"}}}, "uri must be set when type is file, and only then"),
]


@dataclass(frozen=True, slots=True)
class Change:
    """`broken`: the messages of the transition rules that forbid to put the spec `new` in the place of `old`."""

    kind: str
    old: Json
    new: Json
    broken: tuple[str, ...] = ()


CHANGES = [
    Change("KVCacheManager", {}, {"replicas": 0, "registry": {"type": "file", "volume": PVC}, "service": {"ports": {"metaGrpc": 1}}}),
    Change("KVCacheManager", {"replicas": 3, "coordination": IN_ETCD}, {"replicas": 5, "coordination": IN_REDIS, "metadataBackend": IN_REDIS}),
    Change("Storage", NFS, {**NFS, "nfs": {"rootPath": "/b"}, "enabled": False, "volume": PVC}),
    Change("Storage", NFS, {**NFS, "name": "other"}, (NAME_FIXED,)),
    Change("Storage", {**NFS, "name": "x"}, NFS, (NAME_FIXED,)),
    Change("Storage", {**NFS, "name": "a"}, {**NFS, "name": "a"}),
    Change("Storage", NFS, {**NFS, "managerRef": {"name": "n"}}, (MANAGER_FIXED,)),
    Change("Storage", NFS, {**REF, "dummy": {"rootPath": "/a"}}, (KIND_FIXED,)),
    Change("Storage", {**REF, "threeFS": THREE_FS}, {**REF, "vcnsThreeFS": VCNS, "name": "n"}, (NAME_FIXED, KIND_FIXED)),
    Change("InstanceGroup", GROUP, {**GROUP, "storages": ["b"], "quota": {"total": 1}}),
    Change("InstanceGroup", {**GROUP, "name": "a"}, {**GROUP, "name": "b"}, (NAME_FIXED,)),
    Change("InstanceGroup", GROUP, {**GROUP, "managerRef": {"name": "n"}, "name": "b"}, (NAME_FIXED, MANAGER_FIXED)),
]
