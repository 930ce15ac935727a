"""The label on the leader's pod: moved by the winner, epochs compared, against a small API server over TLS."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import Conflict, InvalidArgument, NotFound, StorageError
from kvcm.service.pod_api import InClusterPods, PodIdentity
from kvcm.service.pod_label import EPOCH_ANNOTATION, LEADER, ROLE_LABEL, PodLabel
from kvcm.service.testing_pods import PodServer

pytestmark = pytest.mark.unit
MARK = {ROLE_LABEL: LEADER}
LEASE_MS = 10_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PodServer]:
    with PodServer(tmp_path) as made:
        yield made


class Node:
    """A node in pod `name`; `epoch` is what it leads under, 0 for a follower."""

    def __init__(self, server: PodServer, folder: Path, name: str) -> None:
        self.epoch = 0
        self.clock = FakeClock()
        self.pods = InClusterPods(PodIdentity(name, "ns", "localhost", server.port), folder)
        self.label = PodLabel(self.pods, name, lambda: self.epoch, self.clock, LEASE_MS)

    def later(self, seconds: int) -> None:
        self.clock.advance_us(seconds * 1_000_000)


def marked(server: PodServer) -> list[str]:
    return sorted(name for name in server.pods if server.labels(name).get(ROLE_LABEL) == LEADER)


def test_the_winner_moves_the_label_and_takes_it_off_a_dead_leader(server: PodServer, tmp_path: Path) -> None:
    async def run() -> None:
        server.add("a")
        server.add("b")
        server.add("alien", owner="another", labels=MARK)
        a, b = Node(server, tmp_path, "a"), Node(server, tmp_path, "b")
        await a.label.turn()
        await b.label.turn()
        assert marked(server) == ["alien"]
        a.epoch = 5
        await a.label.turn()
        assert marked(server) == ["a", "alien"]
        assert server.annotations("a") == {EPOCH_ANNOTATION: "5"}
        b.epoch = 6  # a has died without a word
        await b.label.turn()
        assert marked(server) == ["alien", "b"]
        assert server.annotations("a") == {EPOCH_ANNOTATION: "6"}
        assert server.labels("a") == {"app": "kvcm"}
        # a comes back and still believes that it leads: its label would be older than what stands on its own pod.
        a.later(31)
        await a.label.turn()
        assert marked(server) == ["alien", "b"]
        b.epoch = 0
        await b.label.turn()
        assert marked(server) == ["alien"]
        await a.label.stop()
        await b.label.stop()

    asyncio.run(run())


def test_an_old_leader_that_was_overtaken_between_its_look_and_its_patch_changes_nothing(server: PodServer, tmp_path: Path) -> None:
    async def run() -> None:
        server.add("a")
        a = Node(server, tmp_path, "a")
        a.epoch = 5
        overtaken = threading.Event()

        def overtake(name: str) -> None:
            if not overtaken.is_set():
                overtaken.set()
                server.change("a", {"metadata": {"labels": {ROLE_LABEL: None}, "annotations": {EPOCH_ANNOTATION: "6"}}})

        server.before_patch = overtake
        assert await a.label.settle(5) is False
        assert overtaken.is_set()
        assert marked(server) == []
        assert server.annotations("a") == {EPOCH_ANNOTATION: "6"}
        a.pods.close()

    asyncio.run(run())


def test_a_pod_that_keeps_changing_is_given_up_for_now(server: PodServer, tmp_path: Path) -> None:
    async def run() -> None:
        server.add("a")
        a = Node(server, tmp_path, "a")
        a.epoch = 5
        server.before_patch = lambda name: server.change(name, {"metadata": {}})
        with pytest.raises(Conflict):
            await a.label.settle(5)
        assert len([request for request in server.requests if request.startswith("PATCH")]) == 3
        server.before_patch = lambda name: None
        await a.label.turn()
        assert marked(server) == ["a"]
        a.pods.close()

    asyncio.run(run())


def test_epochs_that_began_anew_do_not_shut_the_leader_out(server: PodServer, tmp_path: Path) -> None:
    async def run() -> None:
        server.add("a", annotations={EPOCH_ANNOTATION: "900"})
        server.add("b", labels=MARK, annotations={EPOCH_ANNOTATION: "901"})
        a = Node(server, tmp_path, "a")
        a.epoch = 2
        await a.label.turn()
        assert marked(server) == ["b"]
        a.later(9)
        await a.label.turn()
        assert marked(server) == ["b"]
        a.later(1)  # a whole lease: nobody else can have led meanwhile
        await a.label.turn()
        assert marked(server) == ["a", "b"]
        a.later(10)
        await a.label.turn()
        a.later(10)
        await a.label.turn()
        assert marked(server) == ["a"]
        a.pods.close()

    asyncio.run(run())


def test_what_somebody_takes_off_comes_back_and_quiet_turns_ask_nothing(server: PodServer, tmp_path: Path) -> None:
    async def run() -> None:
        server.add("a", owner="")
        a = Node(server, tmp_path, "a")
        a.epoch = 1
        await a.label.turn()
        asked = len(server.requests)
        for _ in range(29):
            a.later(1)
            await a.label.turn()
        assert len(server.requests) == asked
        server.change("a", {"metadata": {"labels": {ROLE_LABEL: None}}})
        a.later(1)
        await a.label.turn()
        assert marked(server) == ["a"]
        # As the runner does it: not leading any more, then the end.
        a.label.start()
        a.epoch = 0
        await a.label.stop()
        assert marked(server) == []

    asyncio.run(run())


def test_refusals_are_told_once_and_tried_again_with_growing_pauses(server: PodServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        server.add("a")
        a = Node(server, tmp_path, "a")
        a.epoch = 3
        server.refuse = 403
        for _ in range(200):
            await a.label.turn()
            a.clock.advance_us(100_000)
        assert 4 <= len(server.requests) <= 8
        assert caplog.text.count("pod_label_failed") == 1
        assert "get, list and patch" in caplog.text
        server.refuse = 0
        a.epoch = 4  # a new term is not made to wait
        await a.label.turn()
        assert marked(server) == ["a"]
        a.pods.close()

    asyncio.run(run())


def test_a_rotated_token_is_used_and_errors_are_sentences(server: PodServer, tmp_path: Path) -> None:
    async def run() -> None:
        server.add("a")
        pods = InClusterPods(PodIdentity("a", "ns", "localhost", server.port), tmp_path)
        assert (await pods.get("a"))["metadata"]["name"] == "a"
        server.token = "another"
        with pytest.raises(StorageError, match="HTTP 401") as refused:
            await pods.get("a")
        assert "the-token" not in refused.value.message
        (tmp_path / "token").write_text("another")
        assert len(await pods.labelled("app=kvcm")) == 1
        with pytest.raises(NotFound):
            await pods.get("z/../a")
        server.refuse = 500
        with pytest.raises(StorageError, match="HTTP 500"):
            await pods.patch("a", {})
        (tmp_path / "token").unlink()
        with pytest.raises(StorageError, match="service account"):
            await pods.get("a")
        pods.close()
        gone = InClusterPods(PodIdentity("a", "ns", "localhost", 1), tmp_path)
        (tmp_path / "token").write_text("x")
        with pytest.raises(StorageError, match="cannot be reached"):
            await gone.get("a")
        gone.close()

    asyncio.run(run())


def test_an_api_server_that_hangs_costs_one_deadline_and_then_fails_at_once(server: PodServer, tmp_path: Path) -> None:
    async def run() -> None:
        server.add("a")
        go_on = threading.Event()

        def hang(name: str) -> None:
            go_on.wait(5)

        server.before_patch = hang
        pods = InClusterPods(PodIdentity("a", "ns", "localhost", server.port), tmp_path, call_s=0.3)
        version = server.pods["a"]["metadata"]["resourceVersion"]
        with pytest.raises(StorageError, match="in time"):
            await pods.patch("a", {"metadata": {"resourceVersion": version}})
        with pytest.raises(StorageError, match="earlier request"):
            await pods.get("a")
        go_on.set()
        pods.close()

    asyncio.run(run())


def test_the_identity_of_a_pod_comes_from_its_environment() -> None:
    whole = {"POD_NAME": "a", "POD_NAMESPACE": "n", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert PodIdentity.of(whole) == PodIdentity("a", "n", "10.0.0.1", 443)
    for missing in whole:
        with pytest.raises(InvalidArgument, match=missing):
            PodIdentity.of({name: value for name, value in whole.items() if name != missing})
    with pytest.raises(InvalidArgument, match="port"):
        PodIdentity.of(whole | {"KUBERNETES_SERVICE_PORT": "x"})
