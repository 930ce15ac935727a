"""Rules across fields, as CEL for the API server.

The one list of them. Each has a twin in Python (named in `twin`), which is what `kvcm apply` and the operator trust; a server that is too old
for CEL gets a schema without them (`schema.crd(..., cel=False)`). Lists and texts that a rule looks at are bounded in the models, because the
API server refuses rules whose worst case is too expensive.
"""

from __future__ import annotations

from dataclasses import dataclass

_BACKENDS = ("nfs", "threeFS", "vcnsThreeFS", "mooncake", "tairMemPool", "dummy")
_VOLUMES = ("pvc", "nfs", "hostPath")


@dataclass(frozen=True, slots=True)
class CelRule:
    """`path` is the schema node that carries the rule; `self` in the expression is the value there. `transition` rules compare with oldSelf."""

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


def _identity(kind: str) -> list[CelRule]:
    return [
        CelRule(kind, "spec", _unchanged("name"), "name cannot change: locations and engines refer to it; make a new resource", "identity", True),
        CelRule(
            kind,
            "spec",
            "self.managerRef.name == oldSelf.managerRef.name",
            "managerRef cannot change; make a new resource for the other manager",
            "identity",
            True,
        ),
    ]


_PATHS = (
    ("spec.nfs", "rootPath"),
    ("spec.dummy", "rootPath"),
    ("spec.threeFS", "mountpoint"),
    ("spec.threeFS", "rootDir"),
    ("spec.vcnsThreeFS", "mountpoint"),
    ("spec.vcnsThreeFS", "rootDir"),
    ("spec.volume.nfs", "path"),
    ("spec.volume.hostPath", "path"),
)

RULES: tuple[CelRule, ...] = (
    *_identity("Storage"),
    CelRule("Storage", "spec", _exactly_one(_BACKENDS), f"set exactly one of {', '.join(_BACKENDS)}", "StorageSpec._exactly_one_backend"),
    CelRule(
        "Storage",
        "spec",
        " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in _BACKENDS),
        "the kind of a storage cannot change; make a new resource with another name",
        "plan",
        True,
    ),
    CelRule(
        "Storage",
        "spec",
        "!has(self.volume) || !(has(self.mooncake) || has(self.tairMemPool))",
        "volume is only for nfs, threeFS, vcnsThreeFS, dummy",
        "StorageSpec._exactly_one_backend",
    ),
    CelRule("Storage", "spec.volume", _exactly_one(_VOLUMES), f"set exactly one of {', '.join(_VOLUMES)}", "Volume._exactly_one"),
    CelRule(
        "Storage",
        "spec.mooncake",
        "(self.protocol == 'rdma') == (self.rdmaDevice != '')",
        "rdmaDevice must be set when protocol is rdma, and only then",
        "MooncakeBackend._device_with_rdma",
    ),
    *(CelRule("Storage", path, _no_parent_steps(field), f"{field} must not contain '..' steps", "base._no_parent_steps") for path, field in _PATHS),
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
        "spec.metadataIndex.backend",
        "(self.type == 'file') == has(self.uri)",
        "uri must be set when type is file, and only then",
        "MetadataBackend._uri_with_file",
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
