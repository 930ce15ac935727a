"""Errors that only the configuration room raises. Each is a kind of a common error, so that the service maps it without knowing it.

The sentences go to administrators as they are: they name the entity and what to do, never a record's content.
"""

from __future__ import annotations

from kvcm.common.errors import Conflict, InvalidArgument, StorageError, TakenOver


class SettingsError(InvalidArgument):
    """A configuration value that the process cannot start with."""


class VersionConflict(Conflict):
    """The optimistic lock of an instance group was lost: read the group again, then decide again."""


class InUse(Conflict):
    """Something still refers to what should be removed or moved. Repeating helps only after the reference is gone."""

    retryable = False


class FencedOut(TakenOver):
    """The store of the registry or of block metadata has refused a whole change because of its fence."""


class StoreDamaged(StorageError):
    """The store as a whole cannot be read (a single bad record is quarantined instead)."""

    retryable = False
