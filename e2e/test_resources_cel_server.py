"""The CRDs on a real server that knows their rules: what it accepts, refuses, fills in and prints, beside what Python says to the same objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.cel import CelServer, Verdict
from e2e.cluster.errors import BedError
from e2e.support.verdicts import only_python_sees, parsed, python_problems
from kvcm.resources.errors import Problem
from kvcm.resources.schema import KINDS
from kvcm.resources.testing_cases import CASES, CHANGES, GROUP, NFS, Case, Change
from kvcm.resources.transitions import transition_problems

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
PLURALS = {info.kind: info.plural for info in KINDS}
GOOD = sorted((ROOT / "tests/samples/good").glob("*.yaml"))
SHIPPED = sorted(path for path in (ROOT / "manifests/samples").glob("*.yaml") if path.name != "kustomization.yaml")
# `document-...` are bad as files: they never become an object of one of our kinds.
BAD = sorted(path for path in (ROOT / "tests/samples/bad").glob("*.yaml") if not path.stem.startswith("document-"))


def _document(path: Path) -> Json:
    document: Json = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def _try(server: CelServer, document: Json) -> Verdict:
    return server.create(PLURALS[document["kind"]], document, dry_run=True)


# --- the CRDs ---


def test_the_server_takes_every_crd_with_its_rules(resources_server: CelServer) -> None:
    """Rules are compiled, and their cost is bounded, when a CRD is created: one that is wrong or too dear would have been refused."""
    for info in KINDS:
        found = resources_server.api.json(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{info.crd_name}")
        conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
        assert conditions["Established"] == conditions["NamesAccepted"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"
        sent = _document(ROOT / "crds" / info.file_name)
        assert found["spec"]["versions"][0]["schema"] == sent["spec"]["versions"][0]["schema"]
        assert found["status"]["acceptedNames"]["shortNames"] == list(info.short_names)


def test_a_rule_that_is_wrong_or_too_dear_would_have_been_refused(resources_server: CelServer) -> None:
    """Without this the test above would prove nothing."""
    wrong = ("self.nothing == 1", "undefined field 'nothing'")
    dear = ("self.names.all(a, self.names.all(b, self.names.all(c, a + b != c)))", "exceeds budget")
    for rule, words in (wrong, dear):
        with pytest.raises(BedError, match=words):
            resources_server.install(_probe(rule))


def _probe(rule: str) -> Json:
    names = {"type": "array", "items": {"type": "string"}}
    spec = {"type": "object", "properties": {"names": names}, "x-kubernetes-validations": [{"rule": rule, "message": "no"}]}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names_of = {"kind": "Probe", "plural": "probes", "singular": "probe", "listKind": "ProbeList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "probes.test.kvcm.io"},
        "spec": {"group": "test.kvcm.io", "scope": "Namespaced", "names": names_of, "versions": [version]},
    }


# --- samples and cases: the server and Python say the same ---


@pytest.mark.parametrize("path", GOOD + SHIPPED, ids=lambda path: path.stem)
def test_a_good_sample_is_stored_with_the_defaults_of_the_model(resources_server: CelServer, path: Path) -> None:
    document = _document(path)
    verdict = _try(resources_server, document)
    assert verdict.accepted, verdict.message
    assert verdict.body["spec"] == parsed(document).spec.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert verdict.body["status"] == {"observedGeneration": -1, "conditions": []}
    assert python_problems(verdict.body) == []


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_sample_is_refused_at_the_places_that_python_names(resources_server: CelServer, path: Path) -> None:
    document = _document(path)
    problems = python_problems(document)
    assert problems
    verdict = _try(resources_server, document)
    expected = [problem for problem in problems if not only_python_sees(problem, document)]
    assert verdict.accepted is (not expected), (verdict.message, problems)
    named = [_named(problem, verdict) for problem in expected]
    # an unknown field ends the server's reading, so that it says nothing about the others
    assert any(named) if verdict.status == 400 else all(named), (problems, verdict.message)


def _named(problem: Problem, verdict: Verdict) -> bool:
    """Does the server blame this place too? It speaks of a whole object where a field in it must not be there or must be there."""
    last = problem.path.rpartition(".")[2]
    return any(field == problem.path or last in message or problem.sentence in message for field, message in [*verdict.causes, ("", verdict.message)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.broken[:40] or 'good'}")
def test_a_rule_that_is_broken_is_said_in_its_own_words(resources_server: CelServer, case: Case) -> None:
    verdict = _try(resources_server, case.document())
    assert verdict.accepted is (not case.broken), verdict.message
    if case.broken:
        ((field, sentence),) = verdict.causes
        assert sentence.endswith(case.broken)
        assert not case.path or field == case.path.removesuffix("[]")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.kind}-{'-'.join(change.broken)[:40] or 'good'}")
def test_what_must_not_change_cannot_be_changed(resources_server: CelServer, change: Change) -> None:
    plural = PLURALS[change.kind]
    old, new = Case(change.kind, change.old, name="change").document(), Case(change.kind, change.new, name="change").document()
    created = resources_server.create(plural, old)
    assert created.accepted, created.message
    try:
        new["metadata"]["resourceVersion"] = created.body["metadata"]["resourceVersion"]
        verdict = resources_server.replace(plural, new)
        assert verdict.accepted is (not change.broken), verdict.message
        assert sorted(message.removeprefix("Invalid value: ") for _, message in verdict.causes) == sorted(change.broken)
        assert sorted(problem.sentence for problem in transition_problems(parsed(old), parsed(new))) == sorted(change.broken)
    finally:
        resources_server.delete(plural, old)


# --- unknown fields, subresources, what people read ---


@pytest.mark.parametrize("case", [Case("Storage", NFS), Case("InstanceGroup", GROUP), Case("KVCacheManager", {})], ids=lambda case: case.kind)
def test_an_unknown_field_is_an_error_or_is_dropped_as_the_client_asks(resources_server: CelServer, case: Case) -> None:
    document = case.document()
    document["spec"]["nosuch"] = 1
    verdict = _try(resources_server, document)
    assert verdict.status == 400
    assert 'unknown field "spec.nosuch"' in verdict.message
    kept = resources_server.create(PLURALS[case.kind], document, dry_run=True, strict=False)
    assert kept.accepted
    assert "nosuch" not in kept.body["spec"]


def test_a_status_is_written_apart_and_printed(resources_server: CelServer) -> None:
    document = Case("Storage", NFS, name="shown").document()
    created = resources_server.create("storages", document)
    assert created.accepted, created.message
    try:
        condition = {"type": "Ready", "status": "True", "reason": "Registered", "message": "", "lastTransitionTime": "2024-01-01T00:00:00Z"}
        status = {"observedGeneration": 1, "conditions": [condition], "serverName": "shown", "type": "nfs", "enabled": True}
        written = resources_server.replace("storages", {**created.body, "spec": {**created.body["spec"], "enabled": False}, "status": status}, part="/status")
        assert written.accepted, written.message
        assert written.body["status"] == status
        assert written.body["spec"] == created.body["spec"]
        assert written.body["metadata"]["generation"] == 1
        table = resources_server.table("storages", document)
        columns = [column["name"] for column in table["columnDefinitions"]]
        assert columns == ["Name", "Ready", "Reason", "Synced", "Age", "Server-Name", "Type", "Enabled", "Manager"]
        assert table["rows"][0]["cells"][:3] == ["shown", "True", "Registered"]
        assert table["rows"][0]["cells"][5:] == ["shown", "nfs", True, "m"]
    finally:
        resources_server.delete("storages", document)


def test_a_manager_is_scaled_within_its_rules(resources_server: CelServer) -> None:
    document = Case("KVCacheManager", {}, name="scaled").document()
    created = resources_server.create("kvcachemanagers", document)
    assert created.accepted, created.message
    try:
        scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "scaled", "namespace": "default"}}
        path = "/apis/kvcm.io/v1alpha1/namespaces/default/kvcachemanagers/scaled/scale"
        status, body = resources_server.api.send("PUT", path, {**scale, "spec": {"replicas": 0}})
        assert (status, body["spec"]) == (200, {})  # Kubernetes leaves out a zero here
        status, body = resources_server.api.send("PUT", path, {**scale, "spec": {"replicas": 2}})
        assert status == 422
        assert "replicas above 1 need coordination.type" in body["message"]
    finally:
        resources_server.delete("kvcachemanagers", document)
