"""CustomResourceDefinitions out of the pydantic models (design D9).

Kubernetes accepts only *structural* schemas: every node has a type, no `$ref`, no `anyOf` around types, no `additionalProperties: false` next to
`properties`, no numeric `exclusiveMinimum`. pydantic writes JSON Schema 2020-12, so this module rewrites: references are inlined, "X or null"
becomes X, defaults of whole objects become `{}` (the API server then fills in the inner defaults). A construct that cannot be rewritten
raises, so that a new model field fails in the tests and not at `kubectl apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from kvcm.resources.base import GROUP, VERSION
from kvcm.resources.group import InstanceGroupSpec, InstanceGroupStatus
from kvcm.resources.manager import KVCacheManagerSpec, KVCacheManagerStatus
from kvcm.resources.parse import model_in
from kvcm.resources.rules import rules_for
from kvcm.resources.storage import StorageSpec, StorageStatus

Json = dict[str, Any]

_KEPT = (
    "description",
    "type",
    "format",
    "default",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)


@dataclass(frozen=True, slots=True)
class KindInfo:
    kind: str
    plural: str
    short_names: tuple[str, ...]
    description: str
    spec: type[BaseModel]
    status: type[BaseModel]
    wide_columns: tuple[tuple[str, str, str], ...]
    scaled: bool = False

    @property
    def crd_name(self) -> str:
        return f"{self.plural}.{GROUP}"

    @property
    def file_name(self) -> str:
        return f"{GROUP}_{self.plural}.yaml"


KINDS: tuple[KindInfo, ...] = (
    KindInfo(
        "Storage",
        "storages",
        ("kvst",),
        "Storage is one named place for KV bytes on one manager.",
        StorageSpec,
        StorageStatus,
        (
            ("Server-Name", "string", ".status.serverName"),
            ("Type", "string", ".status.type"),
            ("Enabled", "boolean", ".status.enabled"),
            ("Manager", "string", ".spec.managerRef.name"),
        ),
    ),
    KindInfo(
        "InstanceGroup",
        "instancegroups",
        ("kvig",),
        "InstanceGroup is a set of instances that share a quota and storages.",
        InstanceGroupSpec,
        InstanceGroupStatus,
        (
            ("Server-Name", "string", ".status.serverName"),
            ("Version", "integer", ".status.version"),
            ("Instances", "integer", ".status.instances"),
            ("Usage-Percent", "integer", ".status.usagePercent"),
            ("Manager", "string", ".spec.managerRef.name"),
        ),
    ),
    KindInfo(
        "KVCacheManager",
        "kvcachemanagers",
        # `kvcm` is the category too, and kubectl takes `kubectl get kvcm NAME` for a name in all three kinds and refuses; `kvmgr` is free of that.
        ("kvcm", "kvmgr"),
        "KVCacheManager is the metadata service of a set of inference engines.",
        KVCacheManagerSpec,
        KVCacheManagerStatus,
        (
            ("Available", "string", '.status.conditions[?(@.type=="Available")].status'),
            ("Replicas", "integer", ".status.replicas"),
            ("Leader", "string", ".status.leader.pod"),
            ("Endpoint", "string", ".status.endpoints.metaGrpc"),
            ("Version", "string", ".status.version"),
        ),
        scaled=True,
    ),
)


def crd(info: KindInfo, *, cel: bool = True) -> Json:
    """One CustomResourceDefinition as plain data, in a fixed order of keys."""
    root = root_schema(info, cel=cel)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": info.crd_name},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": info.kind,
                "listKind": f"{info.kind}List",
                "plural": info.plural,
                "singular": info.kind.lower(),
                "shortNames": list(info.short_names),
                "categories": ["kvcm"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root},
                    "subresources": _subresources(info),
                    "additionalPrinterColumns": _columns(info),
                }
            ],
        },
    }


def root_schema(info: KindInfo, *, cel: bool = True) -> Json:
    """The structural schema of one kind."""
    status = structural(info.status)
    # Without this a fresh object has no status at all, which tools read as "done" (models.md D1, D2).
    status["default"] = {"observedGeneration": -1}
    root: Json = {
        "description": info.description,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(info.spec),
            "status": status,
        },
    }
    if cel:
        for rule in rules_for(info.kind):
            node = node_at(root, rule.path)
            node.setdefault("x-kubernetes-validations", []).append({"rule": rule.expression, "message": rule.message})
            if node.get("default") == {}:
                node["default"] = _inner_defaults(node)
    return root


def _inner_defaults(node: Json) -> Json:
    """What `{}` comes to. An API server asks the rules of a node about its default as it is written, before it fills in what is within."""
    children: Json = node.get("properties", {})
    return {name: child["default"] for name, child in children.items() if "default" in child}


def node_at(root: Json, path: str) -> Json:
    """The schema node of a field path; raises KeyError for a path that the models do not have."""
    node = root
    for step in path.split(".") if path else ():
        name, is_list, _ = step.partition("[]")
        node = node["properties"][name]
        if is_list:
            node = node["items"]
    return node


def structural(model: type[BaseModel]) -> Json:
    """The schema of one model without references."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    node = _convert(source, source.get("$defs", {}))
    _fill_in_factories(node, model)
    return node


def _fill_in_factories(node: Json, model: type[BaseModel]) -> None:
    """Defaults that a factory makes are left out by pydantic. All of ours are objects, and the API server fills in what is within."""
    for name, field in model.model_fields.items():
        child = node["properties"][field.alias or name]
        if field.default_factory is not None:
            child["default"] = {}
        inner = model_in(field.annotation)
        if inner is not None and "properties" in child:
            _fill_in_factories(child, inner)


def _convert(source: Mapping[str, Any], definitions: Mapping[str, Any]) -> Json:
    source = _without_null(_resolved(source, definitions), definitions)
    # An empty text as a default says no more than an absent field.
    target: Json = {key: source[key] for key in _KEPT if key in source and not (key == "default" and source[key] in (None, ""))}
    if "const" in source:
        target["enum"] = [source["const"]]
    if target.get("type") == "integer":
        target["format"] = "int64"
    if "properties" in source:
        required = source.get("required")
        if required:
            target["required"] = sorted(required)
        target["properties"] = {name: _convert(child, definitions) for name, child in source["properties"].items()}
    elif isinstance(source.get("additionalProperties"), Mapping):
        target["additionalProperties"] = _convert(source["additionalProperties"], definitions)
    if "items" in source:
        target["items"] = _convert(source["items"], definitions)
    if "type" not in target and "x-kubernetes-int-or-string" not in target:
        raise ValueError(f"this part of a model has no structural form: {sorted(source)}")
    if "description" in target:
        target["description"] = " ".join(str(target["description"]).split())
    return target


def _resolved(source: Mapping[str, Any], definitions: Mapping[str, Any]) -> Json:
    if "$ref" not in source:
        return dict(source)
    merged = dict(definitions[str(source["$ref"]).rsplit("/", 1)[-1]])
    merged.update({key: value for key, value in source.items() if key != "$ref"})
    return merged


def _without_null(source: Json, definitions: Mapping[str, Any]) -> Json:
    if "anyOf" not in source:
        return source
    members = [member for member in source["anyOf"] if member.get("type") != "null"]
    if len(members) != 1:
        raise ValueError("a field of several types has no structural form")
    merged = _resolved(members[0], definitions)
    merged.update({key: value for key, value in source.items() if key != "anyOf"})
    return merged


def _subresources(info: KindInfo) -> Json:
    if not info.scaled:
        return {"status": {}}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}
    return {"status": {}, "scale": scale}


def _columns(info: KindInfo) -> list[Json]:
    def condition(name: str, field: str) -> str:
        return f'.status.conditions[?(@.type=="{name}")].{field}'

    columns: list[Json] = [
        {"name": "Ready", "type": "string", "jsonPath": condition("Ready", "status")},
        {"name": "Reason", "type": "string", "jsonPath": condition("Ready", "reason")},
        {"name": "Synced", "type": "string", "jsonPath": condition("Synced", "status")},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    columns += [{"name": name, "type": kind, "jsonPath": path, "priority": 1} for name, kind, path in info.wide_columns]
    return columns
