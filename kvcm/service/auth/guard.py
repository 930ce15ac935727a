"""May this call go on? One answer for both transports; they only say it in their own words.

A guard belongs to a plane. The admin guard stands before Admin, Debug, `/metrics` and `/api/healthy`; the meta guard, if there is one, before Meta. A token
makes an administrator; an account has the role that it was given. An administrator's token opens the meta plane too.

Danger: what is not listed in READS needs an administrator, so a new RPC is closed until somebody thinks about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvcm.common.errors import NotReady
from kvcm.config.accounts import Role
from kvcm.service.auth.accounts import AccountCheck, Busy
from kvcm.service.auth.header import BasicOffer, BearerOffer, NoOffer, parse_authorization
from kvcm.service.auth.tokens import TokenSet

READS = frozenset(
    {
        "ListStorage",
        "GetInstanceGroup",
        "ListInstanceGroup",
        "GetCacheMeta",
        "GetInstanceInfo",
        "ListInstanceInfo",
        "CheckHealth",
        "GetMetrics",
        "GetLeaderElectorConfig",
        "GetManagerClusterInfo",
        "ListAsyncCopyQuarantine",
    }
)
"""RPCs of AdminService that an account with the role USER may call."""


class Refusal(Enum):
    """Why a call may not go on."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    FORBIDDEN = "forbidden"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


@dataclass(slots=True)
class Tokens:
    """The tokens in force; replaced as a whole when a file changes."""

    current: TokenSet


class Guard:
    """`planes`: whose tokens are good here. `accounts`: None unless accounts are on. `meta`: is this the metadata plane, where every role may do all?"""

    def __init__(self, planes: tuple[Tokens, ...], accounts: AccountCheck | None = None, *, meta: bool = False) -> None:
        self._planes = planes
        self._accounts = accounts
        self._meta = meta
        self.takes_passwords = accounts is not None
        self.refused = dict.fromkeys(Refusal, 0)

    def may(self, role: Role, rpc: str) -> bool:
        """`rpc`: the name of an RPC; "" for a page that anybody with a role may read."""
        return role is Role.ADMIN or self._meta or not rpc or rpc in READS

    async def admit(self, authorization: bytes | None, peer: str, rpc: str) -> Refusal | None:
        """None: go on. `authorization`: the header as it came, None without one. `peer`: the caller's address without its port."""
        refusal = await self._decide(authorization, peer, rpc)
        if refusal is not None:
            self.refused[refusal] += 1
        return refusal

    async def _decide(self, authorization: bytes | None, peer: str, rpc: str) -> Refusal | None:
        offer = parse_authorization(authorization)
        if isinstance(offer, NoOffer):
            return Refusal.MISSING if offer is NoOffer.MISSING else Refusal.MALFORMED
        if isinstance(offer, BearerOffer):
            known = False
            for plane in self._planes:
                known |= plane.current.accepts(offer.token)
            return None if known else Refusal.UNKNOWN
        return await self._account(offer, peer, rpc)

    async def _account(self, offer: BasicOffer, peer: str, rpc: str) -> Refusal | None:
        if self._accounts is None:
            return Refusal.MALFORMED
        try:
            role = await self._accounts.role(offer.user, offer.password, peer)
        except Busy:
            return Refusal.BUSY
        except NotReady:
            return Refusal.UNAVAILABLE
        if role is None:
            return Refusal.UNKNOWN
        return None if self.may(role, rpc) else Refusal.FORBIDDEN
