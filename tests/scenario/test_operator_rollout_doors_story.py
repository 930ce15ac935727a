"""Roll-outs that change how a manager is administered: while they run, old and new pods are opened in different ways."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import pytest

from kvcm.client.errors import AccessDenied
from kvcm_operator.testing_house import House
from kvcm_operator.testing_nodes import Nodes
from kvcm_operator.testing_several import BOSS, deleted, ready, run, spec
from kvcm_operator.world import Json, Ref

pytestmark = pytest.mark.scenario


def secret(name: str, *keys: str) -> Json:
    data = {key: base64.b64encode(f"{name}-{key}-0123456789-0123456789".encode()).decode() for key in keys}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "data": data}


@pytest.mark.parametrize(
    "change",
    [
        {"service": {"ports": {"adminGrpc": 7491}}},
        {"service": {"ports": {"metaGrpc": 6491, "adminGrpc": 6381}}},
        {"adminToken": {"type": "secret", "secret": {"name": "ours", "key": "second"}}},
        {"adminToken": {"type": "none"}},
        {"tls": {"secretName": "certificate"}},
        {"tls": {"secretName": "certificate"}, "adminToken": {"type": "none"}, "service": {"ports": {"adminGrpc": 7491}}, "image": "kvcm:2"},
    ],
    ids=["port", "ports-swapped", "token", "no-token", "tls", "all"],
)
def test_the_way_in_changes_and_the_leader_still_goes_last(change: dict[str, Any]) -> None:
    async def story(house: House, nodes: Nodes) -> None:
        house.kube.put(secret("ours", "first", "second"))
        house.kube.put(secret("certificate", "tls.crt", "tls.key", "ca.crt"))
        spec(house, **change)
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]
        assert nodes.demoted == ["demo-0"]
        # And back, from halfway.
        house.kube.writes.clear()
        nodes.demoted.clear()
        spec(house, service={"ports": {"adminGrpc": 8491}}, adminToken={"type": "generated"}, tls=None)
        await house.beats(lambda: bool(deleted(house)))
        spec(house, **{"service": {}, "tls": None, "adminToken": {}, **change})
        await house.beats(partial(ready, house))
        assert nodes.demoted == [], "the leader has what the spec says again"
        assert set(deleted(house)) <= {"demo-0", "demo-2"}

    run(story)


def test_available_stays_true_while_the_service_wants_the_old_token() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        async def refuse(what: str) -> None:
            if what.startswith("describe"):
                raise AccessDenied("another token")

        house.directory.on_call = refuse
        spec(house, adminToken={"type": "none"})
        await house.beats(lambda: bool(deleted(house)))
        assert nodes.serves
        assert house.condition(BOSS, "Available") == ("True", "Serving")
        house.directory.on_call = None
        await house.beats(partial(ready, house))

    run(story)


def test_a_secret_that_goes_away_too_soon_holds_the_roll_out_and_its_return_frees_it() -> None:
    async def story(house: House, nodes: Nodes) -> None:
        ref = Ref("Secret", "default", "demo-admin-token")
        held = house.kube.body(ref)
        for node in nodes.by_name.values():
            node.silent = True
        house.kube.mark_deleted(ref)
        house.kube.put(secret("ours", "token"))
        spec(house, adminToken={"type": "secret", "secret": {"name": "ours"}})
        for _ in range(20):
            await house.beat()
        assert deleted(house) == [], "any of them may be the leader"
        house.kube.put({**held, "metadata": {"name": ref.name, "namespace": "default"}})
        for node in nodes.by_name.values():
            node.silent = False
        await house.beats(partial(ready, house))
        assert deleted(house) == ["demo-2", "demo-1", "demo-0"]

    run(story)
