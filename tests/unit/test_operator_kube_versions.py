"""Disruption budgets under both versions of their API: policy/v1beta1 up to Kubernetes 1.20, policy/v1 from 1.21, nothing else from 1.25."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import NotFound
from kvcm_operator.kube import HttpKube
from kvcm_operator.kube_versions import ASK_AGAIN_US
from kvcm_operator.world import Json, KubeForbidden, Ref

pytestmark = pytest.mark.unit

BUDGET: Json = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "n", "resourceVersion": "1"}}


class Server:
    """Serves some versions of one group; keeps what it is sent."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions
        self.calls: list[tuple[str, str, str]] = []
        self.stored: Json | None = None

    async def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Json | None = None) -> Json:
        self.calls.append((method, path, str((body or {}).get("apiVersion", ""))))
        if path == "/apis/policy":
            if not self.versions:
                raise NotFound("no such group")
            if self.versions == ("hidden",):
                raise KubeForbidden("not for you")
            return {"versions": [{"groupVersion": f"policy/{version}", "version": version} for version in self.versions]}
        if path.split("/")[3] not in self.versions or (method == "GET" and self.stored is None):
            raise NotFound("not found")
        self.stored = body or self.stored
        return dict(self.stored or {})


@pytest.mark.parametrize(("served", "used"), [(("v1beta1",), "v1beta1"), (("v1", "v1beta1"), "v1"), (("v1",), "v1"), (("v2", "v1"), "v1")])
def test_the_newest_version_that_the_server_has_is_used_for_every_call(served: tuple[str, ...], used: str) -> None:
    async def story() -> None:
        server = Server(*served)
        kube = HttpKube(server, FakeClock())
        ref = Ref("PodDisruptionBudget", "n", "b")
        assert await kube.get(ref) is None
        await kube.create(BUDGET)
        found = await kube.get(ref)
        # What is read looks as it was made, or it would be written anew with every pass.
        assert found == BUDGET
        await kube.replace(found)
        folder = f"/apis/policy/{used}/namespaces/n/poddisruptionbudgets"
        version = f"policy/{used}"
        assert server.calls == [
            ("GET", "/apis/policy", ""),
            ("GET", f"{folder}/b", ""),
            ("POST", folder, version),
            ("GET", f"{folder}/b", ""),
            ("PUT", f"{folder}/b", version),
        ]

    asyncio.run(story())


def test_a_cluster_that_is_upgraded_is_asked_again() -> None:
    async def story() -> None:
        server, clock = Server("v1beta1"), FakeClock()
        kube = HttpKube(server, clock)
        await kube.create(BUDGET)
        server.versions = ("v1",)
        clock.advance_us(ASK_AGAIN_US + 1)
        await kube.replace(BUDGET)
        assert server.calls[-1][1].startswith("/apis/policy/v1/")

    asyncio.run(story())


def test_whoever_may_not_ask_takes_the_newest_version() -> None:
    async def story() -> None:
        server = Server("hidden")
        assert await HttpKube(server, FakeClock()).get(Ref("PodDisruptionBudget", "n", "b")) is None
        assert server.calls[-1][1].startswith("/apis/policy/v1/")

    asyncio.run(story())


def test_kinds_that_never_moved_cost_no_question() -> None:
    async def story() -> None:
        server = Server()
        with pytest.raises(NotFound):
            await HttpKube(server, FakeClock()).replace({**BUDGET, "kind": "RoleBinding"})
        assert [path for _, path, _ in server.calls] == ["/apis/rbac.authorization.k8s.io/v1/namespaces/n/rolebindings/b"]

    asyncio.run(story())
