"""URIs of a Redis Cluster: where they are understood, and what is said where they are not."""

from __future__ import annotations

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.common.redis.target import is_redis_uri, parse_target

pytestmark = pytest.mark.unit


def test_nodes_login_and_parameters_are_read() -> None:
    target = parse_target("redis-cluster://me:word@a:7001,b,[::1]:7003/?timeout_ms=100&cluster_name=c", cluster=True)
    assert target.cluster
    assert target.addresses == (("a", 7001), ("b", 6379), ("::1", 7003))
    assert (target.user, target.password, target.timeout_ms, target.cluster_name, target.tls) == ("me", "word", 100, "c", False)
    assert target.shown == "the cluster of a:7001,b:6379,::1:7003"
    assert parse_target("rediss-cluster://a/", cluster=True).tls
    assert not parse_target("redis://a/", cluster=True).cluster


def test_where_only_one_redis_will_do_the_sentence_names_what_does() -> None:
    assert is_redis_uri("redis-cluster://a/")
    with pytest.raises(InvalidArgument, match="leadership and the registry in etcd, or in one Redis"):
        parse_target("redis-cluster://a/")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("redis-cluster://a/?db=1", "one database"),
        ("redis-cluster://a/master", "no path"),
        ("redis-cluster://a,/", "needs a host"),
        ("redis://a,b/", "redis-cluster"),
    ],
)
def test_what_a_cluster_has_not_is_refused(uri: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        parse_target(uri, cluster=True)
