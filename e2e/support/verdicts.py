"""What Python says to a custom resource, and where it may refuse what an API server accepts."""

from __future__ import annotations

import re
from typing import Any

from kvcm.resources.errors import Problem, ResourceError
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.parse import Resource, parse_manager, parse_resource

Json = dict[str, Any]

NUMBER = "(?#of a number)"
"""A mark in the sentence of an entry that counts for numbers only."""
_MAX_INT64 = 2**63 - 1
PYTHON_ONLY: tuple[tuple[str, str, str], ...] = (
    ("an API server makes a name out of generateName", r"metadata\.name", r"is required"),
    ("no schema knows the names of settings, nor their types and ranges", r"spec\.settings", r"(?!must be a mapping).*"),
    (
        "a schema bounds the values of a map and not its keys",
        r"spec\.(podLabels|podAnnotations|nodeSelector|resources\..*)",
        r"has a key.*",
    ),
    ("amounts of bytes need arithmetic", r"spec\.quota\.(total|byType\..*)", r"(is not a whole number of bytes|must be at most|must not be negative).*"),
    ("a schema's pattern is not asked about numbers, only about texts", r"spec\.resources\..*", NUMBER + r"must be an amount such as.*"),
    ("the size of a tree that is passed through is not known to a schema", r"spec\.affinity\..*", r"must be at most \d+ KiB as JSON"),
)
"""Why, and the path and the sentence of what Python alone refuses (regular expressions). On Kubernetes the operator then says `InvalidSpec`."""


def parsed(document: Json) -> Resource | KVCacheManagerResource:
    """Raises ResourceError."""
    return parse_manager(document) if document.get("kind") == "KVCacheManager" else parse_resource(document)


def without_nulls(node: Any) -> Any:
    """As an API server reads an object: a field that is null is not given, so that its default counts. Python refuses a null where there is a default."""
    if isinstance(node, dict):
        return {name: without_nulls(child) for name, child in node.items() if child is not None}
    return [without_nulls(child) for child in node] if isinstance(node, list) else node


def python_problems(document: Json) -> list[Problem]:
    """Empty if it is accepted."""
    try:
        parsed(document)
    except ResourceError as error:
        return list(error.problems)
    return []


def only_python_sees(problem: Problem, document: Json) -> bool:
    for _, path, sentence in PYTHON_ONLY:
        if re.fullmatch(path, problem.path) and re.fullmatch(sentence, problem.sentence, re.DOTALL):
            value = _value_at(document, problem.path)
            if isinstance(value, int):
                return value <= _MAX_INT64  # a larger one is no whole number to an API server
            return NUMBER not in sentence
    return False


def _value_at(document: Json, path: str) -> object:
    """ "" where there is nothing."""
    node: Any = document
    for step in re.split(r"[.\[]", path.replace("]", "")):
        try:
            node = node[int(step) if isinstance(node, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            return ""
    return node
