"""A small stand-in for what an API server does with a structural schema: refuse, validate, fill in defaults.

For tests of our own CRDs and samples without a cluster. It knows exactly the constructs that `schema.py` writes and raises for any other, so it
can never pass something by not looking at it. CEL rules are not evaluated here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, type[Any]] = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
_KNOWN = {
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
    "items",
    "properties",
    "required",
    "additionalProperties",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
}
# RE2, which the API server uses, has no look-around and no back-references.
_NOT_RE2 = re.compile(r"\(\?[=!<]|\\[1-9]")


def structural_problems(schema: Mapping[str, Any], path: str = "") -> list[str]:
    """Why an API server would refuse this schema; empty when it would take it."""
    found = [f"{path}: {name} is not structural" for name in schema if name not in _KNOWN]
    if schema.get("x-kubernetes-int-or-string"):
        found += [f"{path}: an int-or-string has no type"] if "type" in schema else []
    elif schema.get("type") not in _TYPES:
        found.append(f"{path}: has no type")
    if "pattern" in schema and _NOT_RE2.search(schema["pattern"]):
        found.append(f"{path}: the pattern is not RE2")
    properties = schema.get("properties", {})
    found += [f"{path}: requires {name}, which is no property" for name in schema.get("required", ()) if name not in properties]
    if schema.get("x-kubernetes-list-type") == "map":
        found += _map_problems(schema, path)
    if "default" in schema:
        found += [f"{path}: bad default: {problem}" for problem in violations(schema, with_defaults(schema, schema["default"]))]
    for name, child in properties.items():
        found += structural_problems(child, f"{path}.{name}")
    if "additionalProperties" in schema:
        found += [f"{path}: has both properties and additionalProperties"] if properties else []
        found += structural_problems(schema["additionalProperties"], f"{path}.*")
    if schema.get("type") == "array":
        found += structural_problems(schema["items"], f"{path}[]") if "items" in schema else [f"{path}: an array without items"]
    return found


def _map_problems(schema: Mapping[str, Any], path: str) -> list[str]:
    item = schema.get("items", {})
    keys = schema.get("x-kubernetes-list-map-keys", [])
    return [f"{path}: the map key {key} must be a required field of its items" for key in keys if key not in item.get("required", ())]


def violations(schema: Mapping[str, Any], value: Any, path: str = "") -> list[str]:
    """What is wrong with a value, unknown fields included (as with `kubectl --validate=strict`)."""
    unknown = set(schema) - _KNOWN
    if unknown:
        raise ValueError(f"this checker does not know {sorted(unknown)}")
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            return [f"{path}: must be a number or a text"]
        return _text_violations(schema, value, path) if isinstance(value, str) else []
    if isinstance(value, bool) is not (schema["type"] == "boolean") or not isinstance(value, _TYPES[schema["type"]]):
        return [f"{path}: must be of type {schema['type']}"]
    found = [f"{path}: must be one of {schema['enum']}"] if "enum" in schema and value not in schema["enum"] else []
    if isinstance(value, str):
        found += _text_violations(schema, value, path)
    elif isinstance(value, int):
        found += [f"{path}: too small"] if value < schema.get("minimum", value) else []
        found += [f"{path}: too large"] if value > schema.get("maximum", value) else []
    elif isinstance(value, list):
        found += [f"{path}: too few"] if len(value) < schema.get("minItems", 0) else []
        found += [f"{path}: too many"] if len(value) > schema.get("maxItems", len(value)) else []
        for index, item in enumerate(value):
            found += violations(schema["items"], item, f"{path}[{index}]")
    elif isinstance(value, dict) and "properties" in schema:
        found += [f"{path}.{name}: is required" for name in schema.get("required", ()) if name not in value]
        found += [f"{path}.{name}: is unknown" for name in value if name not in schema["properties"]]
        for name, child in schema["properties"].items():
            if name in value:
                found += violations(child, value[name], f"{path}.{name}")
    elif isinstance(value, dict) and "additionalProperties" in schema:
        found += [f"{path}: too many"] if len(value) > schema.get("maxProperties", len(value)) else []
        for name, item in value.items():
            found += violations(schema["additionalProperties"], item, f"{path}.{name}")
    return found


def _text_violations(schema: Mapping[str, Any], value: str, path: str) -> list[str]:
    found = [f"{path}: too short"] if len(value) < schema.get("minLength", 0) else []
    found += [f"{path}: too long"] if len(value) > schema.get("maxLength", len(value)) else []
    found += [f"{path}: does not match the pattern"] if "pattern" in schema and not re.search(schema["pattern"], value) else []
    return found


def with_defaults(schema: Mapping[str, Any], value: Any) -> Any:
    """A copy with every default of the schema filled in, parents before children, as the API server does."""
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, child in schema.get("properties", {}).items():
        # A null where there is a default means "not given".
        if filled.get(name) is None and "default" in child:
            filled[name] = copy.deepcopy(child["default"])
        if name in filled:
            filled[name] = with_defaults(child, filled[name])
    return filled
