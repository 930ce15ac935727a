"""The operator as a process: `kvcm-operator` with its Lease and probes, and `kopf run -m kvcm_operator`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from kvcm.common.clock import SystemClock
from kvcm.common.testing_ports import free_port
from kvcm_operator.subject import Subject
from kvcm_operator.testing import FakeKube
from kvcm_operator.testing_house import storage
from kvcm_operator.testing_server import FakeApiServer
from kvcm_operator.world import STORAGE, Ref

pytestmark = pytest.mark.integration

FAST = Ref(STORAGE, "default", "fast")
LEASE = Ref("Lease", "default", "kvcm-operator")
OPERATOR = Path(__file__).parents[2] / "operator"
LIMIT_S = 40.0


@asynccontextmanager
async def process(argv: list[str], url: str, folder: Path, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "KVCM"))}
    found = {**kept, "KUBECONFIG": str(path), "PYTHONPATH": str(OPERATOR), **env}
    with (folder / "log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(sys.executable, "-m", *argv, env=found, stdout=log, stderr=log)
        try:
            yield running
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()


async def until_seen(kube: FakeKube, folder: Path) -> None:
    """The operator has looked at the storage, which waits for its manager."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while Subject(kube.body(FAST)).condition("Ready").get("reason") != "ManagerNotFound":  # noqa: ASYNC110  # another process moves it
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError((folder / "log").read_text()) from None


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


def test_the_console_script_leads_works_answers_probes_and_ends_in_order(tmp_path: Path) -> None:
    async def story() -> None:
        server, port = FakeApiServer(FakeKube(SystemClock())), free_port()
        server.kube.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default", "namespace": ""}})
        server.kube.put(storage(), held=False)
        async with server.serve() as url, process(["kvcm_operator"], url, tmp_path, KVCM_OPERATOR_HTTP_PORT=str(port)) as running:
            await until_seen(server.kube, tmp_path)
            assert server.kube.body(LEASE)["spec"]["holderIdentity"]
            assert (await get(port, "/healthz"))[0] == 200
            assert (await get(port, "/readyz"))[0] == 200
            assert 'kvcm_operator_objects{kind="Storage",reason="ManagerNotFound"} 1.0' in (await get(port, "/metrics"))[1]
            running.terminate()
            assert await asyncio.wait_for(running.wait(), LIMIT_S) == 0, (tmp_path / "log").read_text()
            assert server.kube.body(LEASE)["spec"]["holderIdentity"] == ""
            assert "Traceback" not in (tmp_path / "log").read_text()

    asyncio.run(story())


def test_one_that_loses_its_lease_ends_with_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        server = FakeApiServer(FakeKube(SystemClock()))
        server.kube.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default", "namespace": ""}})
        server.kube.put(storage(), held=False)
        async with server.serve() as url, process(["kvcm_operator"], url, tmp_path, KVCM_OPERATOR_HTTP_PORT="0") as running:
            await until_seen(server.kube, tmp_path)
            server.kube.edit(LEASE, lambda body: body["spec"].update(holderIdentity="another", renewTime="later"))
            assert await asyncio.wait_for(running.wait(), LIMIT_S) == 1, (tmp_path / "log").read_text()
            assert server.kube.body(LEASE)["spec"]["holderIdentity"] == "another"

    asyncio.run(story())


def test_the_frameworks_own_command_line_works_too(tmp_path: Path) -> None:
    async def story() -> None:
        server = FakeApiServer(FakeKube(SystemClock()))
        server.kube.put({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "default", "namespace": ""}})
        server.kube.put(storage(), held=False)
        async with server.serve() as url, process(["kopf", "run", "-m", "kvcm_operator", "-A", "--standalone"], url, tmp_path) as running:
            await until_seen(server.kube, tmp_path)
            assert not server.kube.has(LEASE)
            running.terminate()
            assert await asyncio.wait_for(running.wait(), LIMIT_S) == 0, (tmp_path / "log").read_text()

    asyncio.run(story())


def test_bad_settings_are_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    async def story() -> None:
        async with process(["kvcm_operator"], "http://127.0.0.1:9", tmp_path, KVCM_OPERATOR_LEASE="maybe") as running:
            assert await asyncio.wait_for(running.wait(), LIMIT_S) == 2
        text = (tmp_path / "log").read_text()
        assert text == "kvcm-operator: KVCM_OPERATOR_LEASE must be on or off\n"

    asyncio.run(story())
