"""Faults that somebody asked for, by API (wire contract 4.1 step 3, 5.8): calls that fail so that a client's handling of failures can be tried.

Danger: a fault that is forgotten. Hence only in memory, only with `kvcm.service.enable_debug_service=true`, each one logged when it is set, and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcm.common.errors import CapacityReached, InvalidArgument
from kvcm.service.errors import InjectedFault

MAX_FAULTS = 64
MAX_NAME_CHARS = 128
_CALL_NUMBER = re.compile(r"_(-?[0-9]{1,10})\Z")


@dataclass(frozen=True, slots=True)
class Fault:
    """`at_call`: None fails every call of the API; else those whose trace_id ends in `_<at_call>`."""

    at_call: int | None = None


class Faults:
    """`requests`: API name -> request class, of the APIs that ask. Names beyond these are kept and never ask: upstream accepts any name."""

    def __init__(self, requests: Mapping[str, type]) -> None:
        self._requests = dict(requests)
        self._set: dict[str, Fault] = {}
        self._active: dict[type, tuple[str, Fault]] = {}

    def __len__(self) -> int:
        return len(self._set)

    def asks(self, api: str) -> bool:
        """Can a fault of this API ever strike?"""
        return api in self._requests

    def inject(self, api: str, fault: Fault) -> None:
        """Replaces the fault that the API has. Raises InvalidArgument, CapacityReached."""
        if not api or len(api) > MAX_NAME_CHARS:
            raise InvalidArgument(f"api_name must have from 1 to {MAX_NAME_CHARS} characters, for example GetCacheLocation")
        if api not in self._set and len(self._set) >= MAX_FAULTS:
            raise CapacityReached(f"at most {MAX_FAULTS} faults can be set; remove some first")
        self._set[api] = fault
        self._index()

    def remove(self, api: str) -> None:
        """Raises InvalidArgument when the API has no fault."""
        if self._set.pop(api, None) is None:
            raise InvalidArgument("no fault is set for this api_name")
        self._index()

    def clear(self) -> None:
        self._set.clear()
        self._index()

    def check(self, request: Any) -> None:
        """Raises InjectedFault when this call is to fail."""
        found = self._active.get(type(request))
        if found is None:
            return
        api, fault = found
        if fault.at_call is not None and fault.at_call != _call_number(request.trace_id):
            return
        raise InjectedFault(f"{api} failed because a fault is set for it; DebugService.RemoveFault takes it away")

    def _index(self) -> None:
        self._active = {self._requests[api]: (api, fault) for api, fault in self._set.items() if api in self._requests}


def _call_number(trace_id: str) -> int | None:
    """The integer after the last `_`; None when there is none."""
    found = _CALL_NUMBER.search(trace_id[-16:])
    return int(found[1]) if found else None
