"""From a parsed document to a resource, with errors for people.

pydantic finds what is wrong; this module says it: the path in camelCase, one sentence, the fields or values that are allowed, the nearest
field for a typing error, and a hint for what is known but not built. Values of the document are never repeated.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from kvcm.resources import base, manager, manager_connections, manager_security, pod
from kvcm.resources.base import API_VERSION, GROUP
from kvcm.resources.errors import Problem, ResourceError
from kvcm.resources.group import InstanceGroupResource
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.storage import StorageResource

# What a manager can be told; the manager itself is the operator's matter alone.
Resource = StorageResource | InstanceGroupResource
MODELS: dict[str, type[StorageResource] | type[InstanceGroupResource]] = {
    "Storage": StorageResource,
    "InstanceGroup": InstanceGroupResource,
}

_PATTERN_SENTENCES = (
    base.PATTERN_SENTENCES | manager.PATTERN_SENTENCES | manager_connections.PATTERN_SENTENCES | manager_security.PATTERN_SENTENCES | pod.PATTERN_SENTENCES
)
_NOT_BUILT = "is not built in this version and would be ignored; remove it"
_CLUSTER = "a Redis Cluster can hold block metadata only; set it in spec.metadataBackend.redis"
_HINTS = {
    "spec.admission": f"admission under pressure {_NOT_BUILT}",
    "spec.migrations": f"migration between storages {_NOT_BUILT}",
    "spec.migration": f"migration between storages {_NOT_BUILT}",
    "spec.quota.byType.vcnsThreeFS": "bytes in vcnsThreeFS storages count as threeFS; set spec.quota.byType.threeFS",
    "spec.reclaim.policy": f"choosing blocks to make room {_NOT_BUILT}",
    "spec.reclaim.usedPercent": f"making room when a group is nearly full {_NOT_BUILT}",
    "spec.coordination.type": "must be memory, etcd or redis; leases in a folder are for managers of one machine",
    "spec.coordination.redis.cluster": _CLUSTER,
    "spec.registry.redis.cluster": _CLUSTER,
    "spec.tls.clientAuth": f"asking clients for certificates {_NOT_BUILT}",
    "spec.optimizer": f"the optimizer {_NOT_BUILT}",
    "spec.monitoring": f"monitoring {_NOT_BUILT}; metrics are at /metrics on the adminHttp port",
    "spec.podDisruptionBudget": "is not needed: the operator makes one by which one pod at a time may be evicted",
    "metadata.generateName": "a name must be given; generateName is not enough",
}
_TYPES = {
    "string_type": "must be a text (put numbers and words like true in quotes)",
    "int_type": "must be a whole number without quotes",
    "bool_type": "must be true or false, without quotes",
    "dict_type": "must be a mapping of fields",
    "model_type": "must be a mapping of fields",
    "model_attributes_type": "must be a mapping of fields",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "missing": "is required",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "string_too_long": ("max_length", "may have at most {} characters"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "too_long": ("max_length", "may have at most {} entries"),
    "too_short": ("min_length", "must have at least {} entries"),
}

_Model = TypeVar("_Model", bound=BaseModel)


def parse_resource(document: Mapping[str, Any]) -> Resource:
    """One Storage or InstanceGroup. Raises ResourceError with every problem found; `status` is read leniently."""
    kind = document.get("kind")
    if document.get("apiVersion") != API_VERSION or kind not in MODELS:
        raise ResourceError([Problem(f"must be one of the kinds {', '.join(MODELS)} of {API_VERSION}", "kind")])
    return parse_model(MODELS[kind], document)


def parse_manager(document: Mapping[str, Any]) -> KVCacheManagerResource:
    """One KVCacheManager. Raises ResourceError with every problem found; `status` is read leniently."""
    if document.get("apiVersion") != API_VERSION or document.get("kind") != "KVCacheManager":
        raise ResourceError([Problem(f"must be KVCacheManager of {API_VERSION}", "kind")])
    return parse_model(KVCacheManagerResource, document)


def parse_model(model: type[_Model], document: Mapping[str, Any]) -> _Model:
    """Validate against one model; raises ResourceError."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True, include_input=False)
        raise ResourceError(_without_echoes([_problem(model, item) for item in found])) from None


def foreign_version(document: Mapping[str, Any]) -> str | None:
    """The version of a document that is ours by group but not by version, such as `kvcm.io/v2`."""
    version = document.get("apiVersion")
    if isinstance(version, str) and version.partition("/")[0] == GROUP and version != API_VERSION:
        return version
    return None


def _without_echoes(problems: list[Problem]) -> list[Problem]:
    # A list whose element is wrong is reported a second time as too short; only the first says something.
    paths = [problem.path for problem in problems]
    return [problem for problem in problems if not ("at least" in problem.sentence and any(other.startswith(problem.path + "[") for other in paths))]


def _problem(model: type[BaseModel], item: Mapping[str, Any]) -> Problem:
    steps = tuple(item["loc"])
    # Unions put the name of the tried member into the place; fields never look like that.
    steps = tuple(step for step in steps if not (isinstance(step, str) and ("[" in step or step in {"str", "int"})))
    path = _path(steps)
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return Problem(_unknown_field(model, steps, path), path)
    if kind == "literal_error":
        return Problem(_HINTS.get(path) or f"must be one of {context['expected']}", path)
    if kind == "string_pattern_mismatch":
        return Problem(_PATTERN_SENTENCES.get(context["pattern"], f"must match {context['pattern']}"), path)
    if kind in _BOUNDS:
        key, sentence = _BOUNDS[kind]
        return Problem(sentence.format(context[key]), path)
    if kind == "value_error":
        return Problem(str(context["error"]), path)
    return Problem(_TYPES.get(kind) or str(item["msg"]), path)


def _path(steps: tuple[str | int, ...]) -> str:
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _unknown_field(model: type[BaseModel], steps: tuple[str | int, ...], path: str) -> str:
    if path in _HINTS:
        return _HINTS[path]
    known = _fields_at(model, steps[:-1])
    near = difflib.get_close_matches(str(steps[-1]), known, n=1)
    question = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}" if known else ""
    return f"is not a field that this version knows{question}"


def _fields_at(model: type[BaseModel], steps: tuple[str | int, ...]) -> list[str]:
    for step in steps:
        if isinstance(step, int):
            continue
        field = next((field for field in model.model_fields.values() if field.alias == step), None)
        inner = model_in(field.annotation) if field is not None else None
        if inner is None:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def model_in(annotation: object) -> type[BaseModel] | None:
    """The model inside an annotation such as `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = model_in(argument)
        if found is not None:
            return found
    return None
