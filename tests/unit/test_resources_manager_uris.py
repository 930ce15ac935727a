"""What a KVCacheManager says about etcd and Redis, as the URIs that its pods get: read by the parsers that read them there, and free of secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcm.common.redis.target import parse_target
from kvcm.config.settings import Settings
from kvcm.config.settings_load import load_settings
from kvcm.etcd.uri import MAX_ENDPOINTS, parse_etcd_uri
from kvcm.meta.open_backend import parse_metadata_uri
from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.manager_settings import settings_file
from kvcm.resources.manager_uris import STORES_MOUNT, SecretMount, secret_mounts
from kvcm.resources.parse import parse_manager, parse_resource

pytestmark = pytest.mark.unit

GOOD = Path(__file__).parents[1] / "samples/good"


def _sample(name: str) -> KVCacheManagerResource:
    return parse_manager(yaml.safe_load((GOOD / f"{name}.yaml").read_text(encoding="utf-8")))


def _manager(**spec: Any) -> KVCacheManagerResource:
    return parse_manager({"apiVersion": "kvcm.io/v1alpha1", "kind": "KVCacheManager", "metadata": {"name": "m", "namespace": "n"}, "spec": spec})


def _settings(resource: KVCacheManagerResource) -> Settings:
    loaded = load_settings(settings_file(resource), [], {})
    assert loaded.warnings == ()
    return loaded.settings


def test_three_managers_with_leases_in_etcd_and_blocks_behind_sentinels() -> None:
    resource = _sample("manager-several")
    settings = _settings(resource)
    etcd = parse_etcd_uri(settings.coordination_uri)
    assert settings.registry_storage_uri == settings.coordination_uri  # it follows the leases
    assert (etcd.endpoints, etcd.prefix) == (("etcd-0.etcd:2379", "etcd-1.etcd:2379", "[fd00::1]:2379"), "caches/demo")
    login, tls, redis = (f"{STORES_MOUNT}/{name}" for name in ("coordination-login", "coordination-tls", "metadata-login"))
    assert (etcd.username_file, etcd.password_file) == (f"{login}/username", f"{login}/password")
    assert (etcd.tls, etcd.ca_file, etcd.cert_file, etcd.key_file) == (True, f"{tls}/ca.crt", f"{tls}/tls.crt", f"{tls}/tls.key")
    assert etcd.server_name == "etcd.example"
    blocks = parse_metadata_uri(settings.meta_redis_uri)
    assert (blocks.addresses, blocks.master, blocks.db) == ((("sentinel-0", 26379), ("sentinel-1", 26379)), "blocks", 3)
    assert (blocks.username_file, blocks.password_file, blocks.cluster_name) == (f"{redis}/user", f"{redis}/pw", "caches.demo")
    assert (settings.leader_elector_lease_ms, settings.kubernetes_label_pod) == (3000, True)
    assert secret_mounts(resource.spec) == (
        SecretMount("coordination-login", "etcd-login", ("username", "password")),
        SecretMount("coordination-tls", "etcd-tls", ("ca.crt", "tls.crt", "tls.key")),
        SecretMount("metadata-login", "redis-login", ("user", "pw")),
    )


def test_leases_and_blocks_in_one_redis_and_the_registry_elsewhere() -> None:
    resource = _sample("manager-redis")
    settings = _settings(resource)
    redis = parse_target(settings.coordination_uri)
    tls = f"{STORES_MOUNT}/coordination-tls"
    assert settings.meta_redis_uri == settings.coordination_uri
    assert (redis.addresses, redis.tls, redis.cluster_name, redis.db) == ((("redis.caches.svc", 6379),), True, "shared", 0)
    assert (redis.tls_ca_file, redis.tls_cert_file, redis.tls_key_file) == (f"{tls}/ca.crt", f"{tls}/tls.crt", f"{tls}/tls.key")
    assert (redis.username_file, redis.password_file) == ("", f"{STORES_MOUNT}/coordination-login/password")
    registry = parse_etcd_uri(settings.registry_storage_uri)
    assert (registry.prefix, registry.tls, registry.ca_file) == ("kvcm/default/demo", True, "")
    assert [mount.name for mount in secret_mounts(resource.spec)] == ["coordination-login", "coordination-tls"]


def test_two_managers_never_meet_in_one_store_unless_they_are_told_to() -> None:
    found = set()
    for name, namespace in (("b", "a"), ("a-b", "a"), ("b", "a-a")):
        for kind, place in (("etcd", {"endpoints": ["e:1"]}), ("redis", {"address": "r:1"})):
            document = {"name": name, "namespace": namespace}, {"coordination": {"type": kind, kind: place}}
            resource = parse_manager({"apiVersion": "kvcm.io/v1alpha1", "kind": "KVCacheManager", "metadata": document[0], "spec": document[1]})
            uri = _settings(resource).coordination_uri
            found.add(parse_etcd_uri(uri).prefix if kind == "etcd" else parse_target(uri).cluster_name)
    assert len(found) == 6


def test_one_alone_has_nothing_to_do_with_either() -> None:
    settings = _settings(_manager())
    assert (settings.coordination_uri, settings.registry_storage_uri, settings.meta_redis_uri) == ("memory://", "", "")
    assert settings.kubernetes_label_pod is False
    assert secret_mounts(_manager().spec) == ()


def test_blocks_in_a_redis_cluster_and_behind_sentinels_over_tls() -> None:
    cluster = {"cluster": {"addresses": ["a:1", "b:2"]}, "tls": {"secretName": "s"}}
    blocks = parse_metadata_uri(_settings(_manager(metadataBackend={"type": "redis", "redis": cluster})).meta_redis_uri)
    assert (blocks.cluster, blocks.tls, blocks.addresses) == (True, True, (("a", 1), ("b", 2)))
    assert blocks.tls_ca_file == f"{STORES_MOUNT}/metadata-tls/ca.crt"
    sentinel = {"sentinel": {"addresses": ["s:3"], "masterName": "m"}, "tls": {}}
    leases = parse_target(_settings(_manager(coordination={"type": "redis", "redis": sentinel})).coordination_uri)
    assert (leases.master, leases.tls, leases.addresses) == ("m", True, (("s", 3),))


def test_the_example_of_the_page_is_one() -> None:
    page = (GOOD.parents[2] / "docs/kubernetes.md").read_text(encoding="utf-8")
    documents = list(yaml.safe_load_all(page.partition("```yaml\n")[2].partition("```")[0]))
    kinds = {kind: [document for document in documents if document["kind"] == kind] for kind in ("Secret", "KVCacheManager", "Storage", "InstanceGroup")}
    assert [len(found) for found in kinds.values()] == [2, 1, 1, 1]
    manager = parse_manager(kinds["KVCacheManager"][0])
    secrets = {document["metadata"]["name"]: set(document["stringData"]) for document in kinds["Secret"]}
    for document in (*kinds["Storage"], *kinds["InstanceGroup"]):
        assert parse_resource(document).spec.manager_ref.name == manager.metadata.name
    for mount in secret_mounts(manager.spec):
        assert mount.secret == "etcd-ca" or set(mount.keys) <= secrets[mount.secret]
    assert _settings(manager).meta_redis_uri


def test_the_longest_spec_is_still_a_uri() -> None:
    hosts = [f"{'h' * 174}:{number + 65_000}" for number in range(MAX_ENDPOINTS)]
    key = "k" * 63
    login, tls = {"secretName": "s", "usernameKey": key, "passwordKey": key}, {"secretName": "s", "clientCertificate": True}
    etcd = {"endpoints": hosts, "prefix": "p" * 256, "credentials": login, "tls": {**tls, "serverName": "s" * 253}}
    sentinel = {"addresses": hosts, "masterName": "m" * 128}
    redis = {"sentinel": sentinel, "clusterName": "c" * 128, "database": 65_535, "credentials": login}
    settings = _settings(_manager(coordination={"type": "etcd", "etcd": etcd}, metadataBackend={"type": "redis", "redis": redis}))
    assert len(parse_etcd_uri(settings.coordination_uri).endpoints) == len(parse_metadata_uri(settings.meta_redis_uri).addresses) == MAX_ENDPOINTS
