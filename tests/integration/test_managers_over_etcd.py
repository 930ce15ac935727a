"""Two manager processes that share etcd for leadership and registry, with a login: a crash, a demotion, an etcd that goes away; no password in a log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from kvcm.client.admin_client import AdminClient
from kvcm.client.admin_types import AccountRole
from kvcm.common.errors import KvcmError
from kvcm.common.testing_waiting import eventually
from kvcm.etcd.testing import PROGRAM, EtcdServer, enable_auth
from kvcm.service.testing import ManagerProcess

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROGRAM, reason="needs Debian's package etcd-server")]

T = TypeVar("T")
LEASE_MS = 2000
PASSWORD = "canary-of-etcd"


def ask(manager: ManagerProcess, question: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with AdminClient(manager.admin_address) as client:
            return await question(client)

    return asyncio.run(run())


def accounts(manager: ManagerProcess) -> set[str] | None:
    """None while it does not lead."""
    try:
        if not ask(manager, lambda client: client.check_health()).leader:  # the other calls would go to the leader by themselves
            return None
        return {account.name for account in ask(manager, lambda client: client.list_accounts())}
    except KvcmError:
        return None


def epoch(manager: ManagerProcess) -> int:
    return ask(manager, lambda client: client.cluster_info()).leader_epoch


def test_managers_follow_one_another_and_find_the_registry_as_it_was() -> None:
    with EtcdServer("--heartbeat-interval=20", "--election-timeout=200") as etcd:
        enable_auth(etcd.address, {"root": "r", "kvcm": PASSWORD})
        uri = f"etcd://kvcm:{PASSWORD}@{etcd.address}/service"
        secret = f"kvcm.coordination.uri={uri}\nkvcm.registry_storage.uri={uri}\n"
        settings = {"kvcm.leader_elector.lease_ms": str(LEASE_MS)}
        with ManagerProcess(settings, config=secret) as a, ManagerProcess(settings, config=secret) as b:
            first = epoch(a)
            assert (accounts(a), accounts(b)) == (set(), None)
            ask(a, lambda client: client.add_account("kept", "pass-word-1", AccountRole.USER))
            a.kill()
            eventually(lambda: accounts(b) == {"kept"}, "the second leads and knows the account")
            second = epoch(b)
            assert second > first
            a.start()
            ask(b, lambda client: client.leader_demote())
            eventually(lambda: {"kept"} in (accounts(a), accounts(b)), "somebody leads and knows the account")
            # etcd away for longer than the lease: nobody leads, and then somebody does again.
            etcd.only.kill()
            eventually(lambda: accounts(a) is None and accounts(b) is None, "nobody leads")
            etcd.only.start()
            eventually(lambda: {"kept"} in (accounts(a), accounts(b)), "somebody leads and knows the account")
            leader = a if accounts(a) else b
            assert epoch(leader) > second
            assert "canary" not in a.log + b.log
