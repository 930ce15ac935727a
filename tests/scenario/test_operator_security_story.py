"""The token and the certificate of a manager on Kubernetes: who makes them, who waits for them, and what a status says meanwhile."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kvcm.client.errors import AccessDenied
from kvcm_operator.runtime import RECONCILERS
from kvcm_operator.subject import Subject
from kvcm_operator.testing_house import House, applied_manager
from kvcm_operator.world import MANAGER, Json, Ref

pytestmark = pytest.mark.scenario

BOSS, POD = Ref(MANAGER, "default", "demo"), Ref("Pod", "default", "demo-0")
OWN = Ref("Secret", "default", "demo-admin-token")


def run(story: Callable[[House], Awaitable[None]]) -> None:
    async def whole() -> None:
        house = House(dict(RECONCILERS))
        numbers = iter(range(100))
        house.world = replace(house.world, make_token=lambda: f"token-number-{next(numbers)}")
        house.restart()
        await story(house)

    asyncio.run(whole())


def secret(name: str, /, **data: str) -> Json:
    encoded = {key.replace("_", "."): base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}, "data": encoded}


def message(house: House) -> str:
    return str(Subject(house.kube.body(BOSS)).condition("Ready").get("message"))


def pod_volumes(house: House) -> dict[str, Any]:
    return {volume["name"]: volume for volume in house.kube.body(POD)["spec"]["volumes"]}


def test_a_token_is_made_once_and_stays() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager())
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")
        made = house.kube.body(OWN)
        assert base64.b64decode(made["data"]["token"]) == b"token-number-0"
        assert made["metadata"]["ownerReferences"][0]["name"] == "demo"
        assert pod_volumes(house)["admin-token"]["secret"]["secretName"] == "demo-admin-token"
        house.restart()
        house.kube.edit(BOSS, lambda body: body["spec"].update(podLabels={"a": "b"}))
        await house.settle_cluster()
        assert house.kube.body(OWN) == made
        # What users put into it is theirs to decide.
        house.kube.edit(OWN, lambda body: body["data"].update(token=base64.b64encode(b"mine").decode()))
        await house.settle_cluster()
        assert base64.b64decode(house.kube.body(OWN)["data"]["token"]) == b"mine"
        house.kube.mark_deleted(OWN)
        await house.settle_cluster()
        assert base64.b64decode(house.kube.body(OWN)["data"]["token"]) == b"token-number-1"
        assert "token-number" not in repr((house.kube.events, house.kube.statuses, house.kube.body(BOSS)))

    run(story)


def test_a_secret_of_somebody_else_is_not_taken() -> None:
    async def story(house: House) -> None:
        house.kube.put(secret("demo-admin-token", token="theirs"))
        house.kube.put(applied_manager())
        await house.settle()
        assert house.condition(BOSS, "Stalled") == ("True", "ObjectConflict")
        assert "spec.adminToken.secret" in message(house)
        assert not [write for write in house.kube.writes if write.startswith("create")]

    run(story)


def test_a_manager_without_a_token_when_the_spec_says_so() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager(adminToken={"type": "none"}))
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")
        assert not house.kube.has(OWN)
        assert "admin-token" not in pod_volumes(house)

    run(story)


def test_secrets_of_users_are_waited_for() -> None:
    async def story(house: House) -> None:
        house.kube.put(applied_manager(adminToken={"type": "secret", "secret": {"name": "ours", "key": "admin"}}, tls={"secretName": "certificate"}))
        await house.settle_cluster()
        assert house.condition(BOSS) == ("False", "SecretNotFound")
        assert house.condition(BOSS, "Stalled")[0] == "False"
        assert "the Secret ours does not exist" in message(house)
        house.kube.put(secret("ours", token="wrong key"))
        await house.settle_cluster()
        assert "the Secret ours has nothing at admin" in message(house)
        house.kube.edit(Ref("Secret", "default", "ours"), lambda body: body.update(data=secret("ours", admin="a-token-of-ours")["data"]))
        house.kube.put(secret("certificate", tls_crt="c", tls_key="k"))
        await house.settle_cluster()
        assert "the Secret certificate has nothing at ca.crt" in message(house)
        assert not house.kube.refs("StatefulSet")
        house.kube.mark_deleted(Ref("Secret", "default", "certificate"))
        house.kube.put(secret("certificate", tls_crt="c", tls_key="k", ca_crt="a"))
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")
        assert not house.kube.has(OWN)
        assert pod_volumes(house)["tls"]["secret"]["secretName"] == "certificate"
        probe = house.kube.body(POD)["spec"]["containers"][0]["readinessProbe"]["httpGet"]
        assert (probe["path"], probe["scheme"]) == ("/readyz", "HTTPS")

    run(story)


def test_a_token_that_the_manager_refuses_is_not_called_silence() -> None:
    async def story(house: House) -> None:
        async def refuse(_: str) -> None:
            raise AccessDenied("who are you?")

        house.directory.on_call = refuse
        house.kube.put(applied_manager())
        await house.settle_cluster()
        assert house.condition(BOSS) == ("False", "ServerUnreachable")
        assert message(house) == "the manager does not accept the operator's token"
        house.directory.on_call = None
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")

    run(story)


def test_a_secret_that_goes_away_later_is_named_and_available_is_true_only_while_a_pod_is_ready() -> None:
    async def story(house: House) -> None:
        house.kube.put(secret("ours", token="a-token-of-ours"))
        house.kube.put(applied_manager(adminToken={"type": "secret", "secret": {"name": "ours"}}))
        await house.settle_cluster()
        assert house.condition(BOSS) == ("True", "Ready")
        house.kube.mark_deleted(Ref("Secret", "default", "ours"))
        await house.settle_cluster()
        assert house.condition(BOSS) == ("False", "SecretNotFound")
        assert house.condition(BOSS, "Available") == ("True", "Serving"), "what runs goes on with the token that it has"
        house.kube.set_status(POD, {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]})
        await house.settle()
        assert house.condition(BOSS, "Available") == ("False", "SecretNotFound")
        assert house.status(BOSS)["readyReplicas"] == 0
        # To stop all needs no Secret.
        house.kube.edit(BOSS, lambda body: body["spec"].update(replicas=0))
        await house.settle_cluster()
        assert house.condition(BOSS) == ("False", "ScaledToZero")
        assert not house.kube.refs("Pod")

    run(story)
