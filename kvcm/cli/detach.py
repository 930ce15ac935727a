"""Going on in the background (`-d`): the caller's process ends, its copy serves.

Must run before any thread or event loop exists: only the calling thread lives on in a copy. The copy keeps the working directory, stdout and stderr
(upstream's rule: a harness redirects them), reads stdin from /dev/null, leaves the session of its terminal, and holds no other open file of its caller, so
that nobody who waits for the end of such a file waits for the manager.

The caller's process ends when the copy says that it serves, when the copy has ended, or after WAIT_S seconds: a script that goes on afterwards
finds a manager that answers, as a rule, and a start that failed is known there.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Final

from kvcm.common.errors import StorageError

WAIT_S: Final = 5.0
_READY: Final = b"r"
_MAX_INHERITED: Final = 4096


def detach(program: str, failed_code: int, wait_s: float = WAIT_S) -> Callable[[], None]:
    """Returns in the copy only: a function to call when it serves. The caller's process exits with 0, or with `failed_code` when the copy ended early.

    Raises StorageError in the caller's process when there can be no copy.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        ready_in, ready_out = os.pipe()
        child = os.fork()
    except OSError as error:
        raise StorageError(f"no process can be made to run in the background: {error.strerror}") from None
    if child:
        os.close(ready_out)
        os._exit(_wait(program, child, ready_in, failed_code, wait_s))
    os.close(ready_in)
    os.setsid()
    # A second copy, which leads no session, can never be given a terminal again.
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    _close_inherited(ready_out)

    def ready() -> None:
        try:
            os.write(ready_out, _READY)
            os.close(ready_out)
        except OSError:
            # The caller's process has gone; nobody waits.
            return

    return ready


def _wait(program: str, child: int, ready_in: int, failed_code: int, wait_s: float) -> int:
    try:
        os.waitpid(child, 0)
        arrived, _, _ = select.select([ready_in], [], [], wait_s)
        if not arrived or os.read(ready_in, 1) == _READY:
            return 0
    except KeyboardInterrupt:
        # What runs in the background is not the terminal's any more.
        return 0
    os.write(2, f"{program}: the manager ended during its start; the lines above or its log file say why\n".encode())
    return failed_code


def _close_inherited(keep: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    limit = max(keep + 1, _MAX_INHERITED)
    os.closerange(3, keep)
    os.closerange(keep + 1, limit)
