"""The generated CRDs: structural, up to date, complete, with rules that point at real fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from kvcm.resources import generate
from kvcm.resources.errors import ResourceError
from kvcm.resources.parse import parse_resource
from kvcm.resources.rules import RULES, rules_for
from kvcm.resources.schema import KINDS, KindInfo, crd, node_at, root_schema, structural
from kvcm.resources.testing import structural_problems, violations

pytestmark = pytest.mark.unit

CRDS = Path(__file__).parents[2] / "crds"
BY_KIND = {info.kind: info for info in KINDS}


def _text(data: Any) -> str:
    return yaml.safe_dump(data)


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_the_schema_is_structural(info: KindInfo) -> None:
    assert structural_problems(root_schema(info)) == []
    text = _text(crd(info))
    assert "$ref" not in text
    assert "anyOf" not in text
    assert "additionalProperties: false" not in text


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_the_files_are_up_to_date_and_parse_to_the_same_data(info: KindInfo) -> None:
    text = (CRDS / info.file_name).read_text(encoding="utf-8")
    assert text == generate.render(info)
    assert yaml.safe_load(text) == crd(info)


def test_check_tells_drift_and_writing_repairs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    assert generate.main([*out, "--check"]) == 1
    assert "differs from the models" in capsys.readouterr().err
    assert generate.main(out) == 0
    assert generate.main([*out, "--check"]) == 0
    (tmp_path / KINDS[0].file_name).write_text("edited by hand", encoding="utf-8")
    assert generate.main([*out, "--check"]) == 1
    assert generate.main([*out, "--no-cel"]) == 0
    assert "x-kubernetes-validations" not in "".join(path.read_text(encoding="utf-8") for path in tmp_path.iterdir())


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_names_columns_and_status_follow_the_contract(info: KindInfo) -> None:
    spec = crd(info)["spec"]
    assert spec["group"] == "kvcm.io"
    assert spec["names"]["categories"] == ["kvcm"]
    assert spec["names"]["shortNames"] == {"KVCacheManager": ["kvcm", "kvmgr"], "Storage": ["kvst"], "InstanceGroup": ["kvig"]}[info.kind]
    (version,) = spec["versions"]
    assert version["name"] == "v1alpha1"
    assert version["subresources"]["status"] == {}
    shown = [column["name"] for column in version["additionalPrinterColumns"] if "priority" not in column]
    assert shown == ["Ready", "Reason", "Synced", "Age"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}
    conditions = status["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    for column in version["additionalPrinterColumns"]:
        path = column["jsonPath"].removeprefix(".")
        if path.startswith(("status.", "spec.")) and "[" not in path:
            assert node_at(version["schema"]["openAPIV3Schema"], path)["type"] == column["type"]


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_lists_and_texts_of_a_spec_are_bounded(info: KindInfo) -> None:
    def unbounded(node: dict[str, Any], path: str) -> list[str]:
        found = [path] if node.get("type") == "string" and "maxLength" not in node and "enum" not in node else []
        found += [path] if node.get("type") == "array" and "maxItems" not in node else []
        if "additionalProperties" in node:
            found += [path] if "maxProperties" not in node else []
            found += unbounded(node["additionalProperties"], f"{path}.*")
        for name, child in node.get("properties", {}).items():
            found += unbounded(child, f"{path}.{name}")
        return found + (unbounded(node["items"], f"{path}[]") if "items" in node else [])

    assert unbounded(structural(info.spec), "spec") == []


@pytest.mark.parametrize("info", KINDS, ids=lambda info: info.kind)
def test_every_rule_is_in_the_schema_and_speaks_of_real_fields(info: KindInfo) -> None:
    root = root_schema(info)
    rules = rules_for(info.kind)
    assert rules
    for rule in rules:
        node = node_at(root, rule.path)
        assert {"rule": rule.expression, "message": rule.message} in node["x-kubernetes-validations"]
        assert rule.transition is ("oldSelf" in rule.expression)
        for field in re.findall(r"(?:self|oldSelf)\.([A-Za-z]+)(?!\()\b", rule.expression):
            if field not in {"all", "exists_one"}:
                assert field in node["properties"], rule
    assert "x-kubernetes-validations" not in _text(root_schema(info, cel=False))


def test_rules_belong_to_known_kinds() -> None:
    assert {rule.kind for rule in RULES} == set(BY_KIND)


def test_a_model_without_structural_form_is_refused() -> None:
    class TwoTypes(BaseModel):
        value: int | str

    class Untyped(BaseModel):
        value: Any

    for model in (TwoTypes, Untyped):
        with pytest.raises(ValueError, match="structural form"):
            structural(model)


def test_the_stand_in_checker_refuses_what_an_api_server_refuses() -> None:
    assert structural_problems({"type": "object", "anyOf": []})
    assert structural_problems({"type": "string", "pattern": "(?=a)"})
    assert structural_problems({"type": "array"})
    assert structural_problems({"type": "integer", "default": "x"})
    assert structural_problems({"type": "object", "required": ["a"], "properties": {}})
    with pytest.raises(ValueError, match="does not know"):
        violations({"type": "object", "oneOf": []}, {})


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\v", "\x00", "\x1f", "\x7f", "\x85", "\xa0"], ids=ascii)
def test_blanks_mean_the_same_in_the_schema_and_in_the_models(blank: str) -> None:
    """`\\s` would not: it is ASCII in RE2, which an API server uses, and Unicode elsewhere."""
    for path in (f"/a{blank}b", f"/{blank}b"):
        document: dict[str, Any] = {
            "apiVersion": "kvcm.io/v1alpha1",
            "kind": "Storage",
            "metadata": {"name": "s"},
            "spec": {"managerRef": {"name": "m"}, "nfs": {"rootPath": path}},
        }
        assert violations(root_schema(BY_KIND["Storage"]), document)
        with pytest.raises(ResourceError, match="must be an absolute path"):
            parse_resource(document)


@pytest.mark.parametrize(("name", "good"), [("a.b-c.0", True), ("a..b", False), ("a.-b", False), ("a-.b", False), ("a.", False)])
def test_names_are_as_kubernetes_wants_them(name: str, good: bool) -> None:
    document = {
        "apiVersion": "kvcm.io/v1alpha1",
        "kind": "Storage",
        "metadata": {"name": name},
        "spec": {"managerRef": {"name": name}, "nfs": {"rootPath": "/a"}},
    }
    assert (not violations(root_schema(BY_KIND["Storage"]), document)) is good
    if good:
        assert parse_resource(document).metadata.name == name
        return
    with pytest.raises(ResourceError) as caught:
        parse_resource(document)
    assert {problem.path for problem in caught.value.problems} == {"metadata.name", "spec.managerRef.name"}
