"""Errors of the process around the manager."""

from __future__ import annotations

from kvcm.common.errors import InternalError, KvcmError


class PortInUse(KvcmError):
    """A listener cannot be opened."""

    fixer = "administrator"


class NotStarted(InternalError):
    """Something of the server was used before `start` or after `stop`."""


class InjectedFault(InternalError):
    """A call failed because somebody asked for it through DebugService. Not an accident, so nothing to log as one."""

    fixer = "caller"
