"""Every sample file: good ones load and pass the schema, bad ones are refused with the sentence in their first line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcm.resources.errors import ResourceError
from kvcm.resources.loader import load
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.parse import Resource, parse_manager
from kvcm.resources.schema import KINDS, root_schema
from kvcm.resources.testing import violations, with_defaults

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
GOOD = sorted((ROOT / "tests/samples/good").glob("*.yaml"))
BAD = sorted((ROOT / "tests/samples/bad").glob("*.yaml"))
SHIPPED = sorted(path for path in (ROOT / "manifests/samples").glob("*.yaml") if path.name != "kustomization.yaml")
SCHEMAS = {info.kind: root_schema(info) for info in KINDS}

# Bad only by a rule across fields (a CEL rule on a real API server) or by arithmetic that no schema can do.
BY_RULE = {
    "group-file-without-uri",
    "group-redis-uri",
    "group-write-mode-local",
    "group-quota-large",
    "group-quota-milli",
    "group-quota-negative",
    "group-storage-twice",
    "manager-coordination-both",
    "manager-coordination-lease",
    "manager-coordination-no-etcd",
    "manager-etcd-certificate",
    "manager-metadata-mode",
    "manager-metadata-no-redis",
    "manager-redis-cluster-database",
    "manager-redis-two-places",
    "manager-registry-no-place",
    "manager-registry-place",
    "manager-replicas-memory",
    "manager-replicas-registry",
    "manager-setting-interval",
    "manager-setting-lease",
    "manager-dotted-name",
    "manager-label-own",
    "manager-annotation-own",
    "manager-long-name",
    "manager-ports-equal",
    "manager-registry-directory",
    "manager-registry-memory-volume",
    "manager-registry-no-volume",
    "manager-registry-parent-step",
    "manager-registry-two-volumes",
    "manager-resource-key",
    "manager-setting-decided",
    "manager-setting-ignored",
    "manager-setting-number",
    "manager-setting-range",
    "manager-setting-tls",
    "manager-setting-token",
    "manager-token-no-secret",
    "manager-token-secret-twice",
    "manager-setting-unknown",
    "manager-toleration-key",
    "manager-toleration-seconds",
    "manager-toleration-value",
    "storage-no-backend",
    "storage-parent-step",
    "storage-rdma-device",
    "storage-two-backends",
    "storage-two-volumes",
    "storage-volume-kind",
}


def _document(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def _resource(path: Path) -> Resource | KVCacheManagerResource:
    """As `kvcm apply` reads it, or for a manager, which that skips, as the operator does."""
    loaded = load([str(path)])
    if loaded.resources:
        (item,) = loaded.resources
        return item.resource
    try:
        return parse_manager(_document(path))
    except ResourceError as error:
        raise ResourceError([problem.at(str(path)) for problem in error.problems]) from None


@pytest.mark.parametrize("path", GOOD + SHIPPED, ids=lambda path: path.stem)
def test_a_good_sample_loads_and_passes_the_schema(path: Path) -> None:
    assert _resource(path).metadata.name
    document = _document(path)
    schema = SCHEMAS[document["kind"]]
    assert violations(schema, document) == []
    assert violations(schema, with_defaults(schema, document)) == []


@pytest.mark.parametrize("path", GOOD + SHIPPED, ids=lambda path: path.stem)
def test_the_schema_fills_in_the_same_defaults_as_the_model(path: Path) -> None:
    document = _document(path)
    filled = with_defaults(SCHEMAS[document["kind"]], document)
    from_model = _resource(path).spec
    assert filled["spec"] == from_model.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert filled["status"]["observedGeneration"] == document.get("status", {}).get("observedGeneration", -1)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_sample_is_refused_with_its_sentence(path: Path) -> None:
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    sentence = first.removeprefix("# expect: ")
    assert sentence != first
    with pytest.raises(ResourceError) as caught:
        _resource(path)
    assert f"{path}: {sentence}" in caught.value.message
    assert "canary" not in caught.value.message


@pytest.mark.parametrize("path", [path for path in BAD if not path.stem.startswith(("document-", "metadata-"))], ids=lambda path: path.stem)
def test_a_bad_sample_is_refused_by_the_schema_or_by_a_rule(path: Path) -> None:
    document = _document(path)
    found = violations(SCHEMAS[document["kind"]], document)
    assert bool(found) is (path.stem not in BY_RULE), found


def test_the_shipped_samples_load_as_one_directory() -> None:
    loaded = load([str(ROOT / "manifests/samples")])
    assert [item.resource.kind for item in loaded.resources] == ["InstanceGroup", "Storage"]
    listed = yaml.safe_load((ROOT / "manifests/samples/kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert sorted(listed) == [path.name for path in SHIPPED]
