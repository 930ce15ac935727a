"""KVCacheManager: its settings file, what it refuses, its schema's subresources, and that `kvcm apply` leaves it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcm.common.clock import SystemClock
from kvcm.config.settings_load import load_settings
from kvcm.config.store import open_store
from kvcm.coordination.open import open_coordinator
from kvcm.resources.errors import ResourceError
from kvcm.resources.loader import load
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.manager_settings import manager_settings, settings_file, settings_problems
from kvcm.resources.manager_uris import REGISTRY_MOUNT
from kvcm.resources.parse import parse_manager
from kvcm.resources.schema import KINDS, crd, node_at

pytestmark = pytest.mark.unit

GOOD = Path(__file__).parents[1] / "samples/good"
SCHEMA = crd(next(info for info in KINDS if info.kind == "KVCacheManager"))


def _manager(spec: dict[str, Any], status: dict[str, Any] | None = None) -> KVCacheManagerResource:
    document: dict[str, Any] = {"apiVersion": "kvcm.io/v1alpha1", "kind": "KVCacheManager", "metadata": {"name": "m"}, "spec": spec}
    return parse_manager(document if status is None else {**document, "status": status})


def test_the_defaults_are_a_manager_in_memory_on_the_known_ports() -> None:
    text = settings_file(_manager({}))
    assert text.splitlines() == [
        "kvcm.coordination.uri=memory://",
        "kvcm.leader_elector.lease_ms=10000",
        "kvcm.service.admin_auth_token_file=/etc/kvcm-admin-token/token",
        "kvcm.service.admin_http_port=6492",
        "kvcm.service.admin_rpc_port=6491",
        "kvcm.service.http_port=6382",
        "kvcm.service.rpc_port=6381",
    ]


def test_a_manager_starts_with_the_file_of_a_full_spec_and_warns_of_nothing() -> None:
    document = yaml.safe_load((GOOD / "manager-full.yaml").read_text(encoding="utf-8"))
    manager = parse_manager(document)
    loaded = load_settings(settings_file(manager), [], {})
    assert loaded.warnings == ()
    settings = loaded.settings
    assert settings.registry_storage_uri == f"local://{REGISTRY_MOUNT}/demo/registry.json"
    ports = (settings.service_rpc_port, settings.service_http_port, settings.service_admin_rpc_port, settings.service_admin_http_port)
    assert ports == (7381, 7382, 7491, 7492)
    assert (settings.logger_log_level, settings.leader_elector_lease_ms, settings.metrics_prometheus_prefix) == (4, 5000, "cache")
    # What the words mean is what this manager opens.
    assert type(open_store(settings.registry_storage_uri)).__name__ == "LocalStore"
    assert type(open_coordinator(settings.coordination_uri, SystemClock())).__name__ == "MemoryCoordinator"


def test_the_order_of_settings_does_not_change_the_file() -> None:
    one = {"kvcm.metrics.prometheus_prefix": "x", "kvcm.logger.log_level": "3"}
    other = dict(reversed(one.items()))
    assert settings_file(_manager({"settings": one})) == settings_file(_manager({"settings": other}))


def test_a_value_of_a_setting_is_never_repeated() -> None:
    for settings in (
        {"kvcm.nothing": "canary"},
        {"kvcm.service.admin_auth_token": "canary"},
        {"kvcm.leader_elector.lease_ms": "canary"},
        {"kvcm.metrics.report_interval_ms": "canary"},
    ):
        problems = settings_problems(settings)
        assert problems
        assert "canary" not in " ".join(problems)


def test_whatever_start_up_would_warn_about_is_refused() -> None:
    assert settings_problems({"kvcm.logger.log_level": "3x"}) == ["The value of 'kvcm.logger.log_level' has text after its number; it is read as 3."]
    assert settings_problems({"kvcm.metrics.enable_prometheus": "yes"}) == [
        "The value of 'kvcm.metrics.enable_prometheus' is neither 'true' nor 'false'; it is read as false."
    ]
    assert settings_problems({}) == []


def test_every_setting_that_a_field_decides_is_refused_as_a_setting() -> None:
    for key in manager_settings(_manager({})):
        (problem,) = settings_problems({key: "1"})
        assert problem.startswith((f"{key} cannot be set here: set spec.", f"{key} cannot be set here: the operator sets it"))


def test_too_much_of_anything_is_refused() -> None:
    many = {f"k{number}": "v" for number in range(33)}
    for spec in ({"podLabels": many}, {"nodeSelector": many}, {"podAnnotations": {"a": "x" * 4097}}, {"tolerations": [{"key": "a"}] * 33}):
        with pytest.raises(ResourceError, match="may have at most"):
            _manager(spec)
    with pytest.raises(ResourceError, match="must be at most 16 KiB as JSON"):
        _manager({"affinity": {"nodeAffinity": {"x": "y" * 20_000}}})


def test_a_status_of_a_newer_operator_is_read() -> None:
    status = {"observedGeneration": 2, "leader": {"pod": "m-0", "term": 3}, "shards": 4}
    found = _manager({}, status).status
    assert found is not None
    assert found.leader is not None
    assert (found.observed_generation, found.leader.pod) == (2, "m-0")


def test_it_can_be_scaled() -> None:
    (version,) = SCHEMA["spec"]["versions"]
    scale = version["subresources"]["scale"]
    root = version["schema"]["openAPIV3Schema"]
    kinds = [node_at(root, scale[name].removeprefix("."))["type"] for name in ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")]
    assert kinds == ["integer", "integer", "string"]


def test_apply_skips_it_with_a_notice(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text("\n---\n".join((GOOD / name).read_text(encoding="utf-8") for name in ("manager-full.yaml", "storage-dummy.yaml")))
    loaded = load([str(tmp_path)])
    assert [item.resource.kind for item in loaded.resources] == ["Storage"]
    assert loaded.notices[0].startswith("1 KVCacheManager skipped")
