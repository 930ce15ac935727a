"""A manager that labels its pod, with everything wired: the label comes with leadership and goes before the process does."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.service import server as server_module
from kvcm.service.pod_api import InClusterPods
from kvcm.service.pod_label import LEADER, ROLE_LABEL
from kvcm.service.testing import InProcessManager
from kvcm.service.testing_pods import PodServer

pytestmark = pytest.mark.integration
ON = {"kvcm.kubernetes.label_pod": "true"}


def test_the_pod_of_a_leader_is_labelled_while_it_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(pods: PodServer) -> None:
        async with InProcessManager(ON) as manager:
            async with asyncio.timeout(20):
                while not pods.annotations("m-0"):  # noqa: ASYNC110  # the API server lives in a thread
                    await asyncio.sleep(0.01)
            assert manager.snapshot().is_leader
            assert pods.labels("m-0").get(ROLE_LABEL) == LEADER
            assert pods.annotations("m-0") == {"kvcm.io/leader-epoch": str(manager.snapshot().leader_epoch)}
        assert ROLE_LABEL not in pods.labels("m-0")

    with PodServer(tmp_path) as pods:
        # A container that crashed left it behind.
        pods.add("m-0", labels={"app": "kvcm", ROLE_LABEL: LEADER})
        monkeypatch.setattr(server_module, "InClusterPods", partial(InClusterPods, folder=tmp_path))
        for name, value in {
            "POD_NAME": "m-0",
            "POD_NAMESPACE": "ns",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(pods.port),
        }.items():
            monkeypatch.setenv(name, value)
        asyncio.run(run(pods))


def test_outside_of_a_pod_the_start_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with InProcessManager(ON):
            pass

    monkeypatch.delenv("POD_NAME", raising=False)
    with pytest.raises(InvalidArgument, match="POD_NAME"):
        asyncio.run(run())
