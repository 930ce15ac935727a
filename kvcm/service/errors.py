"""Errors of the process around the manager."""

from __future__ import annotations

from kvcm.common.errors import InternalError, KvcmError


class PortInUse(KvcmError):
    """A listener cannot be opened."""

    fixer = "administrator"


class NotStarted(InternalError):
    """Something of the server was used before `start` or after `stop`."""
