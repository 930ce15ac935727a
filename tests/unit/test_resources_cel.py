"""Every CEL rule beside its twin in Python, on the same cases: what the API server refuses, `kvcm apply` and the operator refuse too.

The expressions are evaluated by a CEL library, `self` and `oldSelf` being what an API server would hand in: the value with the schema's defaults.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from kvcm.resources.errors import ResourceError
from kvcm.resources.manager import MANAGER_NAME_SENTENCE, REPLICAS_SENTENCE, KVCacheManagerResource
from kvcm.resources.parse import Resource, parse_manager, parse_resource
from kvcm.resources.rules import KIND_FIXED, MANAGER_FIXED, NAME_FIXED, RULES, CelRule
from kvcm.resources.schema import KINDS, root_schema
from kvcm.resources.testing import violations, with_defaults
from kvcm.resources.transitions import transition_problems

cel = pytest.importorskip("cel", reason="the package common-expression-language evaluates the rules")
pytestmark = pytest.mark.unit

Json = dict[str, Any]
SCHEMAS = {info.kind: root_schema(info) for info in KINDS}
REF = {"managerRef": {"name": "m"}}
NFS: Json = {**REF, "nfs": {"rootPath": "/a"}}
GROUP: Json = {**REF, "storages": ["a"], "quota": {"total": "1Gi"}}
MOONCAKE: Json = {"localHostname": "h", "metadataConnstring": "etcd://h", "protocol": "tcp", "masterServiceEntry": "h:1"}
THREE_FS: Json = {"mountpoint": "/m", "rootDir": "r"}
VCNS: Json = {**THREE_FS, "remoteHost": "h", "remotePort": 1, "metaStorageUri": "redis://h"}
PVC: Json = {"pvc": {"claimName": "c"}}
STEPS = "must not contain '..' steps"


def backend(uri: str) -> Json:
    return {**GROUP, "metadataIndex": {"backend": {"type": "file", "uri": uri}}}


@dataclass(frozen=True)
class Case:
    """`broken`: the message of the only rule that the spec breaks, with the path of the rule when several share it; "" for none."""

    kind: str
    spec: Json
    broken: str = ""
    path: str = ""
    name: str = "x"

    def document(self) -> Json:
        return {"apiVersion": "kvcm.io/v1alpha1", "kind": self.kind, "metadata": {"name": self.name}, "spec": deepcopy(self.spec)}


def tolerations(**fields: Any) -> Json:
    return {"tolerations": [{"key": "a"}, fields]}


def file_registry(**fields: Any) -> Json:
    return {"registry": {"type": "file", "volume": PVC, **fields}}


BACKENDS = "set exactly one of nfs, threeFS, vcnsThreeFS, mooncake, tairMemPool, dummy"
VOLUMES = "set exactly one of pvc, nfs, hostPath"
CASES = [
    Case("KVCacheManager", {}),
    Case("KVCacheManager", {}, name="a" * 52),
    Case("KVCacheManager", {}, MANAGER_NAME_SENTENCE, name="a" * 53),
    Case("KVCacheManager", {}, MANAGER_NAME_SENTENCE, name="1a"),
    Case("KVCacheManager", {}, MANAGER_NAME_SENTENCE, name="a.b"),
    Case("KVCacheManager", {"replicas": 0}),
    Case("KVCacheManager", {"replicas": 2}, REPLICAS_SENTENCE),
    Case("KVCacheManager", file_registry()),
    Case("KVCacheManager", {"registry": {"type": "file"}}, "volume must be set when type is file, and only then"),
    Case("KVCacheManager", {"registry": {"volume": PVC}}, "volume must be set when type is file, and only then"),
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
    Case("InstanceGroup", backend("file:///d/..n")),
    Case("InstanceGroup", backend("file:///d/../n"), f"uri {STEPS}"),
    Case("InstanceGroup", {**GROUP, "metadataIndex": {"backend": {"type": "local"}}}),
    Case("InstanceGroup", {**GROUP, "metadataIndex": {"backend": {"type": "file"}}}, "uri must be set when type is file, and only then"),
    Case("InstanceGroup", {**GROUP, "metadataIndex": {"backend": {"type": "local", "uri": "file:///n"}}}, "uri must be set when type is file, and only then"),
]


@dataclass(frozen=True)
class Change:
    kind: str
    old: Json
    new: Json
    broken: tuple[str, ...] = ()


CHANGES = [
    Change("KVCacheManager", {}, {"replicas": 0, "registry": {"type": "file", "volume": PVC}, "service": {"ports": {"metaGrpc": 1}}}),
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


def parsed(document: Json) -> Resource | KVCacheManagerResource:
    return parse_manager(document) if document["kind"] == "KVCacheManager" else parse_resource(document)


def values_at(document: Any, path: str) -> list[Any]:
    """Every value that a rule at this path is evaluated for; none where the object does not have it."""
    values = [document]
    for step in path.split(".") if path else ():
        name, is_list, _ = step.partition("[]")
        values = [value[name] for value in values if name in value]
        if is_list:
            values = [item for value in values for item in value]
    return values


def holds(rule: CelRule, document: Json, old: Json | None = None) -> bool:
    values = values_at(document, rule.path)
    if not rule.transition:
        return all(cel.evaluate(rule.expression, {"self": value}) is True for value in values)
    before = values_at(old, rule.path)
    return all(cel.evaluate(rule.expression, {"self": value, "oldSelf": was}) is True for value, was in zip(values, before, strict=True))


def stored(document: Json) -> Json:
    schema = SCHEMAS[document["kind"]]
    assert violations(schema, document) == []
    filled: Json = with_defaults(schema, document)
    return filled


def rules(kind: str, *, transition: bool) -> list[CelRule]:
    return [rule for rule in RULES if rule.kind == kind and rule.transition is transition]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.broken[:40] or 'good'}")
def test_cel_and_python_refuse_the_same(case: Case) -> None:
    document = case.document()
    broken = [rule for rule in rules(case.kind, transition=False) if not holds(rule, stored(document))]
    if not case.broken:
        assert broken == []
        parsed(document)
        return
    assert [(rule.message, rule.path) for rule in broken] == [(case.broken, case.path or broken[0].path)]
    with pytest.raises(ResourceError) as caught:
        parsed(document)
    place = (case.path or broken[0].path).removesuffix("[]")
    assert all(problem.path.startswith(place.split(".")[0] if place else "metadata") for problem in caught.value.problems)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.kind}-{'-'.join(change.broken)[:40] or 'good'}")
def test_cel_and_python_refuse_the_same_changes(change: Change) -> None:
    old, new = Case(change.kind, change.old).document(), Case(change.kind, change.new).document()
    broken = [rule.message for rule in rules(change.kind, transition=True) if not holds(rule, stored(new), stored(old))]
    assert sorted(broken) == sorted(change.broken)
    assert sorted(problem.sentence for problem in transition_problems(parsed(old), parsed(new))) == sorted(change.broken)


def test_every_rule_is_broken_by_a_case() -> None:
    for rule in RULES:
        if rule.transition:
            assert any(change.kind == rule.kind and rule.message in change.broken for change in CHANGES), rule
        else:
            found = [case for case in CASES if case.kind == rule.kind and case.broken == rule.message and case.path in ("", rule.path)]
            assert found, rule


def test_two_different_objects_are_no_change_of_one() -> None:
    one, other = Case("Storage", NFS), Case("Storage", NFS, name="y")
    with pytest.raises(ValueError, match="one object"):
        transition_problems(parsed(one.document()), parsed(other.document()))
