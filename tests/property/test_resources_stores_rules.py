"""Leases, registry and block metadata in any combination: the API server's rules and Python refuse the same ones, and whatever both accept starts a manager."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvcm.common.redis.target import is_redis_uri, parse_target
from kvcm.config.settings_load import load_settings
from kvcm.etcd.uri import parse_etcd_uri
from kvcm.meta.open_backend import parse_metadata_uri
from kvcm.resources.errors import ResourceError
from kvcm.resources.manager_settings import settings_file
from kvcm.resources.manager_uris import STORES_MOUNT, secret_mounts
from kvcm.resources.parse import parse_manager
from kvcm.resources.rules import rules_for
from kvcm.resources.schema import KINDS, root_schema
from kvcm.resources.testing import violations, with_defaults

cel = pytest.importorskip("cel", reason="the package common-expression-language evaluates the rules")
pytestmark = pytest.mark.property

Json = dict[str, Any]
SCHEMA = root_schema(next(info for info in KINDS if info.kind == "KVCacheManager"))
RULES = rules_for("KVCacheManager")


def some(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({}, optional=optional)


endpoints = st.lists(st.sampled_from(["a:1", "b.c:65535", "[::1]:2379"]), min_size=1, max_size=3)
tls = some(secretName=st.just("tls-secret"), clientCertificate=st.booleans())
etcd = st.builds(
    lambda hosts, more: {"endpoints": hosts, **more},
    endpoints,
    some(prefix=st.sampled_from(["p", "p/q.r"]), credentials=st.just({"secretName": "s"}), tls=tls),
)
place: dict[str, st.SearchStrategy[Any]] = {
    "address": st.just("r:6379"),
    "sentinel": st.builds(lambda hosts: {"addresses": hosts, "masterName": "m"}, endpoints),
    "database": st.integers(0, 2),
    "clusterName": st.just("c"),
    "credentials": some(usernameKey=st.just("u"), passwordKey=st.just("p")).map(lambda more: {"secretName": "s", **more}),
    "tls": tls,
}
redis = some(**place)
blocks = some(**place, cluster=endpoints.map(lambda hosts: {"addresses": hosts}))


def whole(kind: str, place_of_kind: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    """A type with what belongs to it, which random fields hardly ever are."""
    return place_of_kind.map(lambda found: {"type": kind, kind: found})


one_place = st.one_of(some(**{name: value for name, value in place.items() if name != "sentinel"}).map(lambda found: {**found, "address": "r:6379"}), redis)
in_etcd, in_redis = whole("etcd", etcd), whole("redis", one_place)
coordination = some(type=st.sampled_from(["memory", "etcd", "redis"]), etcd=etcd, redis=redis)
registry = some(type=st.sampled_from(["memory", "file", "etcd", "redis"]), etcd=etcd, redis=redis, volume=st.just({"pvc": {"claimName": "v"}}))
metadata = some(type=st.sampled_from(["local", "redis"]), redis=blocks, writeMode=st.sampled_from(["WriteThrough", "WriteBehind"]))
specs = some(
    replicas=st.integers(0, 3),
    coordination=st.one_of(coordination, in_etcd, in_redis),
    registry=st.one_of(registry, in_etcd, in_redis, st.sampled_from([{}, {"type": "etcd"}])),
    metadataBackend=st.one_of(metadata, in_redis, st.just({"type": "redis"})),
)


def values_at(document: Any, path: str) -> list[Any]:
    values = [document]
    for step in path.split(".") if path else ():
        name, is_list, _ = step.partition("[]")
        values = [value[name] for value in values if name in value]
        if is_list:
            values = [item for value in values for item in value]
    return values


@settings(deadline=None, max_examples=80)
@given(specs)
def test_I_CR_1_the_api_server_and_python_agree_and_what_they_accept_can_be_started(spec: Json) -> None:
    document = {"apiVersion": "kvcm.io/v1alpha1", "kind": "KVCacheManager", "metadata": {"name": "m"}, "spec": spec}
    assert violations(SCHEMA, document) == []
    stored = with_defaults(SCHEMA, document)
    broken = {rule.message for rule in RULES for value in values_at(stored, rule.path) if cel.evaluate(rule.expression, {"self": value}) is not True}
    try:
        manager = parse_manager(document)
    except ResourceError:
        event("refused")
        assert broken
        return
    event("accepted")
    assert broken == set()
    text = settings_file(manager)
    loaded = load_settings(text, [], {})
    # One manager whose registry is in memory is told so where it takes part in an election; the operator writes its configuration anew.
    forgetful = loaded.settings.coordination_uri not in ("", "memory://") and not loaded.settings.registry_storage_uri
    assert len(loaded.warnings) == forgetful
    assert all("kvcm.registry_storage.uri" in text for text in loaded.warnings)
    for uri in (loaded.settings.coordination_uri, loaded.settings.registry_storage_uri):
        if uri.startswith("etcd://"):
            parse_etcd_uri(uri)
        elif is_redis_uri(uri):
            assert parse_target(uri).cluster_name
    if loaded.settings.meta_redis_uri:
        parse_metadata_uri(loaded.settings.meta_redis_uri)
    # Each file that a URI names is mounted, and nothing is mounted that no URI names.
    files = {f"{mount.path}/{key}" for mount in secret_mounts(manager.spec) for key in mount.keys}
    named = {part.split("&")[0].strip() for part in text.replace("=", "\n").splitlines() if part.startswith(STORES_MOUNT)}
    assert named == files
