"""What can go wrong in a call to the admin or debug service, and which error a reply's code becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kvcm.common.errors import (
    CapacityReached,
    DuplicateEntity,
    ErrorCode,
    InvalidArgument,
    KvcmError,
    NotFound,
    NotLeader,
    NotReady,
    StorageError,
    Unsupported,
)


class ManagerUnreachable(NotReady):
    """No connection to the manager; nothing was sent."""

    fixer = "administrator"


class AdminCallFailed(KvcmError):
    """The manager refused or failed a call. `wire_code` is its code (wire contract 2.1)."""

    fixer = "administrator"

    def __init__(self, method: str, wire_code: int, message: str) -> None:
        super().__init__(message or f"the manager answered {method} with code {wire_code} and no explanation")
        self.method = method
        self.wire_code = wire_code


_ERRORS: dict[int, type[KvcmError]] = {
    ErrorCode.UNSUPPORTED: Unsupported,
    ErrorCode.SERVICE_NOT_READY: NotReady,
    ErrorCode.INVALID_ARGUMENT: InvalidArgument,
    ErrorCode.DUPLICATE_ENTITY: DuplicateEntity,
    ErrorCode.REACH_MAX_ENTITY_CAPACITY: CapacityReached,
    ErrorCode.INSTANCE_NOT_EXIST: NotFound,
    ErrorCode.SERVER_NOT_LEADER: NotLeader,
    ErrorCode.IO_ERROR: StorageError,
}
_Item = TypeVar("_Item")


def check_reply(method: str, reply: Any) -> None:
    """Raises the error that a reply's header carries."""
    status = reply.header.status
    code = int(status.code)
    if code == ErrorCode.OK:
        return
    kind = _ERRORS.get(code)
    if kind is None:
        raise AdminCallFailed(method, code, status.message)
    raise kind(status.message or f"the manager refused {method} ({ErrorCode(code).name})")


def decoded(method: str, decode: Callable[[Any], _Item], messages: Iterable[Any]) -> list[_Item]:
    """Domain objects of a reply; what this version cannot read is the manager's error and not the caller's."""
    try:
        return [decode(message) for message in messages]
    except (KvcmError, ValueError) as error:
        raise AdminCallFailed(
            method, int(ErrorCode.UNKNOWN_ERROR), f"the manager answered {method} with something this version cannot read: {error}"
        ) from error
