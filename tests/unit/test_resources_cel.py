"""Every CEL rule beside its twin in Python, on the same cases: what the API server refuses, `kvcm apply` and the operator refuse too.

The expressions are evaluated by a CEL library, `self` and `oldSelf` being what an API server would hand in: the value with the schema's defaults.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvcm.resources.errors import ResourceError
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.parse import Resource, parse_manager, parse_resource
from kvcm.resources.rules import RULES, CelRule
from kvcm.resources.schema import KINDS, root_schema
from kvcm.resources.testing import violations, with_defaults
from kvcm.resources.testing_cases import CASES, CHANGES, NFS, Case, Change
from kvcm.resources.transitions import transition_problems

cel = pytest.importorskip("cel", reason="the package common-expression-language evaluates the rules")
pytestmark = pytest.mark.unit

Json = dict[str, Any]
SCHEMAS = {info.kind: root_schema(info) for info in KINDS}


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


def _nodes(node: Json) -> list[Json]:
    children = [*node.get("properties", {}).values(), *[node[name] for name in ("items", "additionalProperties") if name in node]]
    return [node, *(found for child in children for found in _nodes(child))]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_default_keeps_the_rules_as_it_is_written(kind: str) -> None:
    """An API server refuses a CRD in which the rules of a node do not hold for its default, and it does not fill in inner defaults before it asks."""
    for node in _nodes(SCHEMAS[kind]):
        for rule in node.get("x-kubernetes-validations", []) if "default" in node else []:
            if "oldSelf" not in rule["rule"]:
                assert cel.evaluate(rule["rule"], {"self": node["default"]}) is True, rule
