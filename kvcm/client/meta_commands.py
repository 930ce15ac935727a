"""What the rules of a metadata client (meta_core, leader_search) ask of their transport. `MetaClient` carries the commands out blocking, `AsyncMetaClient`
awaiting; so the rules exist once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from kvcm.client.seeds import Seeds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a channel; the result is the transport's handle. Does not wait for a connection."""

    address: str


@dataclass(frozen=True, slots=True)
class HangUp:
    handle: Any


@dataclass(frozen=True, slots=True)
class Invoke:
    """One RPC; the result is its reply. Raises RpcFailed. A connection that is refused ends it at once."""

    handle: Any
    address: str
    method: str
    request: Any
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Survey:
    """One RPC to each of these addresses at the same time, on channels of their own; the result lists (address, reply) of those that answered.

    Ends after `timeout_s`, or `grace_s` after the first reply that `tells` something: one dead node must not hold up the others' answers.
    """

    addresses: tuple[str, ...]
    method: str
    request: Any
    timeout_s: float
    grace_s: float
    tells: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class LookUp:
    """Bring the seeds up to date, waiting at most about `timeout_s`."""

    seeds: Seeds
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class EnterSearch:
    """Take the lock of the search for the leader, waiting at most `timeout_s`; the result says whether it was got."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class LeaveSearch:
    pass


Command = Dial | HangUp | Invoke | Survey | LookUp | Pause | EnterSearch | LeaveSearch
Flow = Generator[Command, Any, T]
