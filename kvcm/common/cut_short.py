"""Telling apart what a newer leader has prevented as a whole (TakenOver) and what it has cut in the middle (CutShort).

A TakenOver tells the client that nothing was done and that it may repeat the call elsewhere. A store says so of one of its own steps; whoever takes
several steps for one call has to look whether an earlier one was stored. No I/O; costs nothing while nothing fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from kvcm.common.errors import CutShort, KvcmError, TakenOver

E = TypeVar("E", bound=KvcmError)


def cut_short(error: KvcmError, *, stored: bool) -> KvcmError:
    """The error of a call that ended with `error`. `stored`: an earlier step of it was."""
    if not stored or not isinstance(error, TakenOver):
        return error
    told = CutShort(f"{error.message}; a part of the change had been stored before, so look before you repeat the call")
    told.__cause__ = error
    return told


def cut_short_keys(failures: Mapping[int, E], count: int) -> Mapping[int, E | KvcmError]:
    """The failures of one change of `count` keys, of which those that did not fail are stored."""
    if not failures or len(failures) >= count:
        return failures
    refused = next((error for error in failures.values() if isinstance(error, TakenOver)), None)
    if refused is None:
        return failures
    told = cut_short(refused, stored=True)
    return {key: told if isinstance(error, TakenOver) else error for key, error in failures.items()}


def graver(known: KvcmError | None, error: KvcmError) -> KvcmError:
    """Of the errors of several steps the one to tell: the first, but a TakenOver only when all are, since it says that nothing was done."""
    return error if known is None or (isinstance(known, TakenOver) and not isinstance(error, TakenOver)) else known
