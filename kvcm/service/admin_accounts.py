"""AdminService: accounts (wire contract 5.5). Passwords come in and never go out, not even hashed."""

from __future__ import annotations

from kvcm.config.accounts import Accounts, Role
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.admin_replies import done, finish, required
from kvcm.service.rpc import Call, Reply, Rpc

_WIRE_ROLES = {Role.USER: admin.ROLE_USER, Role.ADMIN: admin.ROLE_ADMIN}


def account_rpcs(accounts: Accounts) -> list[Rpc]:
    service = _Accounts(accounts)
    return [
        Rpc("AddAccount", admin.AddAccountRequest, admin.CommonResponse, service.add),
        Rpc("DeleteAccount", admin.DeleteAccountRequest, admin.CommonResponse, service.delete),
        Rpc("ListAccount", admin.ListAccountRequest, admin.ListAccountResponse, service.list),
    ]


class _Accounts:
    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    async def add(self, request: admin.AddAccountRequest, call: Call) -> Reply:
        # A role of another vintage gets the least rights.
        role = Role.ADMIN if request.role == admin.ROLE_ADMIN else Role.USER
        await self._accounts.add(required(request, "AddAccount", "user_name"), request.password, role)
        return done(call, "" if request.password else "added without a password, so nobody can log in with it; delete it and add it again with one")

    async def delete(self, request: admin.DeleteAccountRequest, call: Call) -> Reply:
        await self._accounts.delete(required(request, "DeleteAccount", "user_name"))
        return done(call)

    async def list(self, request: admin.ListAccountRequest, call: Call) -> Reply:
        listed = [admin.Account(user_name=account.user_name, role=_WIRE_ROLES[account.role]) for account in self._accounts.list()]
        return finish(admin.ListAccountResponse(accounts=listed), call)
