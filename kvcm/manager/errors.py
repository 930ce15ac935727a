"""Errors of the manager room.

InternalError
└── SessionUnknown         the write session was finished, has expired, or belongs to an earlier leader: the write is lost, start it anew
Conflict
└── WriteLost              blocks of the session were removed before it was finished; the others are served
CapacityReached
└── QuotaReached           a byte quota of the group is full
NotFound
└── NoStorage              no storage of the group can take new blocks
StorageError
├── AllStoragesDown        no storage of the group can be read
└── MetadataFailed         the metadata store refused a change; `done` of the call's blocks were changed all the same
NotReady
├── Overloaded             a bounded queue is full
├── SnapshotInProgress     a host's snapshot is being taken in; repeat the report when it has ended
└── SnapshotTooSoon        the host's last snapshot is not old enough; `retry_after_ms` says when it will be
KvcmError
└── NodeNotRegistered      the host was declared down or was silent for too long: it has to register again
"""

from __future__ import annotations

from kvcm.common.errors import CapacityReached, Conflict, ErrorCode, InternalError, KvcmError, NotFound, NotReady, StorageError


class SessionUnknown(InternalError):
    fixer = "caller"


class WriteLost(Conflict):
    retryable = False


class QuotaReached(CapacityReached):
    pass


class NoStorage(NotFound):
    fixer = "administrator"


class AllStoragesDown(StorageError):
    pass


class MetadataFailed(StorageError):
    pass


class Overloaded(NotReady):
    pass


class NodeNotRegistered(KvcmError):
    code = ErrorCode.NODE_NOT_REGISTERED
    fixer = "caller"


class SnapshotInProgress(NotReady):
    code = ErrorCode.SNAPSHOT_IN_PROGRESS


class SnapshotTooSoon(NotReady):
    code = ErrorCode.SNAPSHOT_RATE_LIMITED
    fixer = "caller"

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"the last snapshot of this host is too young; send the next one in {retry_after_ms} ms, and changes meanwhile")
        self.retry_after_ms = retry_after_ms
