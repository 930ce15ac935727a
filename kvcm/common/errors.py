"""The error tree.

    KvcmError
    ├── InvalidArgument      the caller sent something wrong; repeating it cannot help
    ├── Unsupported          a known request that this version does not serve
    ├── NotFound             the named entity does not exist
    │   └── InstanceNotExist
    ├── DuplicateEntity      the name is taken by something different
    ├── Conflict             compare-and-set lost (version, state)
    ├── CapacityReached      a quota or key limit is full; room may appear later
    ├── NotLeader            ask the leader instead
    ├── NotReady             starting, stopping or overloaded; repeat later
    ├── StorageError         a store answered with an error or not in time
    │   ├── OutcomeUnknown   a write was sent and nothing is known about it: read before repeating
    │   │   └── CutShort     a newer leader took over in the middle of a change, and part of it is stored
    │   └── TakenOver        a newer leader has taken over the store, and nothing of the change is stored: ask that one
    └── InternalError        our fault: an invariant broke

Each class says whether repeating the same request can help (`retryable`) and who has to act (`fixer`). Messages go to users: they never
hold secrets, bodies or tracebacks. `code` is the domain's wire-neutral code; the numbers are those of the wire contract (section 2.1), so that
mapping is the identity where the wire has the code.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Literal

Fixer = Literal["caller", "administrator", "kvcm"]


class ErrorCode(IntEnum):
    """Codes a reply can carry (wire contract 2.1)."""

    OK = 1
    UNSUPPORTED = 2
    INTERNAL_ERROR = 3
    SERVICE_NOT_READY = 4
    INVALID_ARGUMENT = 5
    DUPLICATE_ENTITY = 6
    REACH_MAX_ENTITY_CAPACITY = 7
    INSTANCE_NOT_EXIST = 8
    SERVER_NOT_LEADER = 9
    NODE_NOT_REGISTERED = 10
    SNAPSHOT_IN_PROGRESS = 11
    SNAPSHOT_RATE_LIMITED = 13
    IO_ERROR = 20
    UNKNOWN_ERROR = 100


class KvcmError(Exception):
    """Root of all errors that cross a package border on purpose."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR
    retryable: ClassVar[bool] = False
    fixer: ClassVar[Fixer] = "kvcm"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidArgument(KvcmError):
    code = ErrorCode.INVALID_ARGUMENT
    fixer = "caller"


class Unsupported(KvcmError):
    code = ErrorCode.UNSUPPORTED
    fixer = "caller"


class NotFound(KvcmError):
    code = ErrorCode.INSTANCE_NOT_EXIST
    fixer: ClassVar[Fixer] = "caller"


class InstanceNotExist(NotFound):
    pass


class DuplicateEntity(KvcmError):
    code = ErrorCode.DUPLICATE_ENTITY
    fixer = "caller"


class Conflict(KvcmError):
    """A compare-and-set lost: read the current value, then decide again."""

    code = ErrorCode.INTERNAL_ERROR
    retryable = True
    fixer = "caller"


class CapacityReached(KvcmError):
    code = ErrorCode.REACH_MAX_ENTITY_CAPACITY
    retryable = True
    fixer = "administrator"


class NotLeader(KvcmError):
    code = ErrorCode.SERVER_NOT_LEADER
    retryable = True
    fixer = "caller"


class NotReady(KvcmError):
    code = ErrorCode.SERVICE_NOT_READY
    retryable = True


class StorageError(KvcmError):
    code = ErrorCode.IO_ERROR
    retryable = True
    fixer: ClassVar[Fixer] = "administrator"


class OutcomeUnknown(StorageError):
    """A write may or may not have happened. Never repeat it blindly: read the store first."""

    retryable = False


class CutShort(OutcomeUnknown):
    """A newer leader took over while a change was under way: a part of it is stored, and the rest was refused."""


class TakenOver(StorageError):
    """The store has seen a newer leader, so this process may not write any more. Nothing of the change in question was stored, so for the caller it is as
    if it had asked a node that does not lead: the newer leader is to be looked for, and the call repeated there.

    `fence` is the highest epoch the store knows. Never raise it for a change of which a part may be stored: clients repeat what ends so (see `cut_short`).
    """

    code = ErrorCode.SERVER_NOT_LEADER
    fixer = "caller"

    def __init__(self, message: str, fence: int) -> None:
        super().__init__(message)
        self.fence = fence


class InternalError(KvcmError):
    pass


def reason_of(error: BaseException) -> str:
    """For a log line: what an error says. Many time-outs say nothing, and an error that says nothing is at least named."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
