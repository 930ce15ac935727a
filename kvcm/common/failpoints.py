"""Places at which a test makes this process crash, wait or fail on purpose, to see what is left behind and who repairs it (behaviour 10.3, 15.5).

Each operation of OPERATIONS that leaves the process has two points: `<operation>.before`, where nothing of it has happened, and `<operation>.after`, where it
has happened and nobody was told yet. A point is armed with one action:

    crash       the process ends as by SIGKILL
    delay=MS    it waits
    error       the operation fails and nothing was done (`before` only)
    unknown     nobody can tell whether it was done: at `before` it was not, at `after` it was and the answer is lost

Danger: a point that is armed in production. Without `kvcm.debug.fail_points` none exists: the ports are then used as they are, so points cost nothing. The
setting is refused without the debug service, and the log says loudly what is armed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kvcm.common.errors import InvalidArgument, OutcomeUnknown, StorageError

OPERATIONS: Final = MappingProxyType(
    {
        "blocks.fence": "a new leader raises the fence of an instance's metadata",
        "blocks.load": "a new leader reads all blocks of an instance",
        "blocks.add": "blocks become WRITING in the metadata store",
        "blocks.serve": "blocks become SERVING there",
        "blocks.condemn": "blocks become DELETING there",
        "blocks.sync": "physical deletion waits until the marks are durable",
        "bytes.delete": "the bytes of DELETING blocks are deleted",
        "blocks.bury": "the records of blocks whose bytes are gone are removed",
        "blocks.flush": "blocks that were written behind reach the store",
        "registry.fence": "a new leader raises the registry's fence",
        "registry.load": "a new leader reads the registry",
        "registry.apply": "a change of the registry is stored",
        "registry.replace": "the new registry file, complete and on disk, takes the place of the old one",
        "registry.transaction": "one transaction of a change of the registry in etcd; a large change has several",
        "coordinator.campaign": "a node asks for leadership",
        "coordinator.keep_alive": "the leader renews its lease",
        "coordinator.resign": "the leader gives its lease back",
    }
)
POINTS: Final = tuple(f"{operation}.{side}" for operation in OPERATIONS for side in ("before", "after"))
MAX_ARMED: Final = 64
_MAX_DELAY_MS: Final = 60_000
_MAX_PASSES: Final = 1_000_000
_log = logging.getLogger("kvcm.failpoints")


@dataclass(frozen=True, slots=True)
class Armed:
    """`at`: the pass that it strikes at, counted from 1 since it was armed; 0 strikes at every one."""

    point: str
    action: str
    delay_ms: int = 0
    at: int = 1


def parse_armed(text: str) -> Armed:
    """`POINT/ACTION` strikes at the next pass, `POINT/ACTION@N` at the N-th, `POINT/ACTION@*` at each. Raises InvalidArgument."""
    point, slash, rest = text.partition("/")
    action, at_sign, number = rest.partition("@")
    action, equals, delay = action.partition("=")
    if point not in POINTS or not slash:
        raise InvalidArgument(f"a fail point is POINT/ACTION, and POINT one of {', '.join(POINTS)}")
    if action not in ("crash", "delay", "error", "unknown") or (action == "delay") is not bool(equals):
        raise InvalidArgument("the action of a fail point is crash, delay=MILLISECONDS, error or unknown")
    if action == "error" and point.endswith(".after"):
        raise InvalidArgument("the action error means that nothing was done, so it is for points that end with .before; use unknown")
    at = 0 if number == "*" else _number(number, _MAX_PASSES, "the pass that a fail point strikes at") if at_sign else 1
    return Armed(point, action, _number(delay, _MAX_DELAY_MS, "the delay of a fail point") if equals else 0, at)


def parse_fail_points(text: str) -> list[Armed]:
    """The setting: `on`, or a list with commas. Raises InvalidArgument."""
    found = [parse_armed(item.strip()) for item in text.split(",") if item.strip() != "on"]
    if len(found) > MAX_ARMED:
        raise InvalidArgument(f"at most {MAX_ARMED} fail points can be armed")
    return found


class FailPoints:
    """Which points are armed. May be asked from any thread."""

    def __init__(self, text: str = "on", crash: Callable[[], None] | None = None) -> None:
        """`text`: see `parse_fail_points`. Raises InvalidArgument."""
        self._crash = crash or _crash
        self._armed: dict[str, Armed] = {}
        self._left: dict[str, int] = {}
        _log.warning("fail_points_on: this process can be made to crash and to fail on purpose; never use it for anything but tests")
        for armed in parse_fail_points(text):
            self.arm(armed)

    def arm(self, armed: Armed) -> None:
        """Replaces what the point had."""
        self._armed[armed.point], self._left[armed.point] = armed, armed.at
        _log.warning("fail_point_armed point=%s action=%s at=%s", armed.point, armed.action, armed.at or "each")

    def disarm(self, point: str) -> None:
        self._armed.pop(point, None)

    def clear(self) -> None:
        self._armed.clear()

    async def at(self, point: str) -> None:
        """Passing a point on the loop. Raises StorageError or OutcomeUnknown if that is armed."""
        armed = self._strikes(point)
        if armed is not None and armed.action == "delay":
            await asyncio.sleep(armed.delay_ms / 1000)
        elif armed is not None:
            self._fail(armed)

    def passing(self, point: str) -> None:
        """The same in a thread, which is what waits then."""
        armed = self._strikes(point)
        if armed is not None and armed.action == "delay":
            time.sleep(armed.delay_ms / 1000)
        elif armed is not None:
            self._fail(armed)

    def _strikes(self, point: str) -> Armed | None:
        armed = self._armed.get(point)
        if armed is None:
            return None
        if armed.at:
            self._left[point] -= 1
            if self._left[point]:
                return None
            self._armed.pop(point, None)
        _log.warning("fail_point_strikes point=%s action=%s", point, armed.action)
        return armed

    def _fail(self, armed: Armed) -> None:
        if armed.action == "crash":
            self._crash()
        if armed.action == "error":
            raise StorageError(f"the fail point {armed.point} is armed: nothing was done")
        raise OutcomeUnknown(f"the fail point {armed.point} is armed: nobody knows what was done")


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # nothing more happens in this thread


def _number(text: str, most: int, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= most:
        raise InvalidArgument(f"{what} is a number from 1 to {most}")
    return int(text)
