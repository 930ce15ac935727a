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
└── Overloaded             a bounded queue is full
"""

from __future__ import annotations

from kvcm.common.errors import CapacityReached, Conflict, InternalError, NotFound, NotReady, StorageError


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
