"""Errors of the metadata room.

InternalError
└── IllegalTransition      a component asked for a state change that is not in the table: a bug, nothing was changed
Conflict
└── StateChanged           compare-and-set lost: the location is not what the caller saw (retry after reading)
CapacityReached
└── KeyLimitReached        the index holds max_key_count blocks
NotReady
└── KeysBusy               other mutations of the same keys did not finish in time
"""

from __future__ import annotations

from kvcm.common.errors import CapacityReached, Conflict, InternalError, NotReady


class IllegalTransition(InternalError):
    pass


class StateChanged(Conflict):
    pass


class KeyLimitReached(CapacityReached):
    pass


class KeysBusy(NotReady):
    pass
