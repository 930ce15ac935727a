"""Speak to a manager: one deadline a call, two kinds of trouble, and no decisions.

    AdminTrouble
    ├── Silent     nothing is known: no connection, no answer in time, not the leader, still starting; read again later
    └── Refused    the manager understood and said no; `permanent` when the same request can never work

Whatever a library raises becomes one of the two here, so that reconcilers have no third case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kvcm.client.admin_client import AdminCallFailed, ClusterInfo
from kvcm.client.admin_types import GroupView, StorageView
from kvcm.client.errors import AccessDenied
from kvcm.common.errors import InvalidArgument, KvcmError, NotFound, NotLeader, NotReady, OutcomeUnknown, Unsupported
from kvcm.data_storage.model import Storage
from kvcm_operator.plan_group import GroupCall, GroupPlan
from kvcm_operator.plan_storage import StorageCall
from kvcm_operator.world import AdminApi

CALL_TIMEOUT_S = 15.0

_T = TypeVar("_T")


class AdminTrouble(KvcmError):
    """A call to a manager did not work."""


class Silent(AdminTrouble):
    retryable = True


class Refused(AdminTrouble):
    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class Speaker:
    """One manager, for one pass."""

    def __init__(self, admin: AdminApi) -> None:
        self._admin = admin

    async def storages(self) -> dict[str, StorageView]:
        return {view.storage.name: view for view in await _said(self._admin.describe_storages())}

    async def groups(self) -> dict[str, GroupView]:
        return {view.group.name: view for view in await _said(self._admin.describe_groups())}

    async def serves(self) -> bool:
        """Does it say of itself that it serves?"""
        return (await _said(self._admin.check_health())).healthy

    async def cluster(self) -> ClusterInfo:
        return await _said(self._admin.cluster_info())

    async def step_down(self, keep_out_ms: int) -> bool:
        """Ask this node to give up leadership, and to stay out of elections for so long. False when it does not lead, so nothing was done.

        True also when the answer was lost: who leads is to be looked at, whatever was said.
        """
        if await _said(self._admin.campaign_delay_ms()) < keep_out_ms:
            await _said(self._admin.set_campaign_delay(keep_out_ms))
        return await _said(_asked(self._admin.leader_demote()))

    async def instances(self, group: str) -> int:
        return len(await _said(self._admin.list_instances(group)))

    async def storage(self, call: StorageCall, storage: Storage) -> None:
        match call:
            case StorageCall.ADD:
                await _said(self._admin.add_storage(storage))
            case StorageCall.UPDATE:
                await _said(self._admin.update_storage(storage))
            case StorageCall.ENABLE:
                await _said(self._admin.enable_storage(storage.name))
            case StorageCall.DISABLE:
                await _said(self._admin.disable_storage(storage.name))

    async def group(self, plan: GroupPlan) -> None:
        if plan.call is GroupCall.CREATE:
            await _said(self._admin.create_group(plan.desired))
        elif plan.call is GroupCall.UPDATE:
            await _said(self._admin.update_group(plan.desired, plan.current_version))

    async def remove_storage(self, name: str) -> None:
        """One that is gone already is no error."""
        await _said(_gone_is_fine(self._admin.remove_storage, name))

    async def remove_group(self, name: str) -> None:
        """One that is gone already is no error."""
        await _said(_gone_is_fine(self._admin.remove_group, name))


async def _gone_is_fine(remove: Callable[[str], Awaitable[None]], name: str) -> None:
    try:
        await remove(name)
    except NotFound:
        return


async def _asked(demotion: Awaitable[None]) -> bool:
    try:
        await demotion
    except NotLeader:
        return False
    except OutcomeUnknown:
        return True
    return True


async def _said(answer: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await answer
    except TimeoutError:
        raise Silent("the manager did not answer in time") from None
    except (NotReady, NotLeader, OutcomeUnknown) as error:
        # The manager's own sentence may name an address or a duration; a status that repeats it would change all the time.
        raise Silent(_silence(error)) from error
    except AccessDenied as error:
        # While a token changes, manager and operator may know different ones for a moment.
        raise Silent("the manager does not accept the operator's token") from error
    except AdminTrouble:
        raise
    except KvcmError as error:
        permanent = isinstance(error, (InvalidArgument, Unsupported)) and not isinstance(error, AdminCallFailed)
        raise Refused(error.message, permanent=permanent) from error


def _silence(error: KvcmError) -> str:
    if isinstance(error, OutcomeUnknown):
        return "the answer to a change was lost; it will be looked at again"
    if isinstance(error, NotLeader):
        return "the manager that answers is not the leader"
    return "the manager cannot be reached, or is starting"
