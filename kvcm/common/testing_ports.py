"""Ports for servers that tests start: each is given out once on this machine, and the kernel gives it to nobody.

A port that was merely free a moment ago can be taken before its server binds it: the kernel picks the local end of every outgoing connection, and the port
of everybody who binds 0, from its own range. So ports come from below that range, and a lock shared by all test processes marks those that are given out.

Danger: the locks belong to the process (POSIX record locks). They end with it, and would end if somebody else here opened and closed the lock file.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from kvcm.common.errors import NotReady

_FIRST: Final = 10_000
_END: Final = 21_000  # from here on the test bed of Kubernetes looks for its own (e2e/cluster/process.py)
_TRIES: Final = 2_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LAST_BY_DEFAULT: Final = 32_768

_given: set[int] = set()
_locks: list[int] = []


def free_port() -> int:
    """A port that no server uses on any address. Raises NotReady when none is found."""
    return _row((0,))[0]


def free_ports(count: int) -> list[int]:
    """Ports as of `free_port`, all different."""
    return [free_port() for _ in range(count)]


def ports_in_a_row(count: int, also: int = 0) -> list[int]:
    """Ports that follow each other; the one `also` above the second, where it is not 0, is given out with them without being named."""
    more = (1 + also,) if also else ()
    return _row((*range(count), *more))[:count]


def below_ephemeral() -> range:
    """Where ports are taken from."""
    try:
        end = int(_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        end = _LAST_BY_DEFAULT
    # A machine may have given nearly everything to outgoing connections; then those must be shared, as everywhere.
    return range(_FIRST, min(end, _END) if end - _FIRST >= _TRIES else 65_536)


def _row(offsets: tuple[int, ...]) -> list[int]:
    places = below_ephemeral()
    for _ in range(_TRIES):
        first = random.choice(places)
        ports = [first + offset for offset in offsets]
        if ports[-1] in places and _free(ports) and _lock(ports):
            _given.update(ports)
            return ports
    raise NotReady(f"No {len(offsets)} free ports were found in {_TRIES} tries.")


def _free(ports: list[int]) -> bool:
    with ExitStack() as taken:
        for port in ports:
            sock = taken.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of yesterday's server do not matter
            try:
                sock.bind(("", port))
            except OSError:
                return False
    return True


def _lock(ports: list[int]) -> bool:
    """All or none. A process is never in its own way, hence `_given`."""
    if not _given.isdisjoint(ports):
        return False
    if not _locks:
        path = Path(tempfile.gettempdir()) / f"kvcm-test-ports.{os.getuid()}"
        _locks.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for done, port in enumerate(ports):
        try:
            fcntl.lockf(_locks[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            for locked in ports[:done]:
                fcntl.lockf(_locks[0], fcntl.LOCK_UN, 1, locked)
            return False
    return True
