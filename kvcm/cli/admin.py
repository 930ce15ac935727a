"""What commands that talk to a manager share: the address, the time-out, waiting for a manager that is just starting."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from kvcm.common.errors import InvalidArgument, KvcmError, NotLeader, NotReady

if TYPE_CHECKING:
    from kvcm.client.admin_client import AdminClient

MANAGER_VARIABLE = "KVCM_MANAGER"
DEFAULT_MANAGER = "127.0.0.1:6491"
DEFAULT_TIMEOUT_S = 10.0
MAX_TIMEOUT_S = 3600.0
_RETRY_PAUSE_S = 0.2

_Result = TypeVar("_Result")


def add_manager_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--manager",
        metavar="HOST:PORT",
        default=None,
        help=f"admin gRPC address of the manager (default: ${MANAGER_VARIABLE}, else {DEFAULT_MANAGER})",
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=DEFAULT_TIMEOUT_S, help="longest wait for each answer (default: %(default)g)")


def manager_address(option: str | None) -> str:
    """The address to use; raises InvalidArgument for a text that is no `host:port`."""
    text = option or os.environ.get(MANAGER_VARIABLE) or DEFAULT_MANAGER
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536 or "/" in text:
        source = "--manager" if option else MANAGER_VARIABLE
        raise InvalidArgument(f"{source} must be host:port, such as {DEFAULT_MANAGER}")
    return text


def with_manager(options: argparse.Namespace, work: Callable[[AdminClient], Awaitable[_Result]]) -> _Result:
    """Connect, run `work`, disconnect. Raises KvcmError."""
    address = manager_address(options.manager)

    async def run() -> _Result:
        # Here and not above: loading gRPC takes longer than everything else that `kvcm --help` does.
        from kvcm.client.admin_client import AdminClient

        async with AdminClient(address, timeout_s=options.timeout) as admin:
            return await work(admin)

    return asyncio.run(run())


async def when_ready(read: Callable[[], Awaitable[_Result]], timeout_s: float) -> _Result:
    """Repeat a read while the manager is starting or has no leader, until the time is over. A refused connection fails at once."""
    from kvcm.client.admin_client import ManagerUnreachable

    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            return await read()
        except ManagerUnreachable:
            raise
        except (NotReady, NotLeader) as error:
            if asyncio.get_running_loop().time() + _RETRY_PAUSE_S >= deadline:
                raise _gave_up(error, timeout_s) from error
        await asyncio.sleep(_RETRY_PAUSE_S)


def _gave_up(error: KvcmError, timeout_s: float) -> KvcmError:
    return type(error)(f"the manager was not ready within {timeout_s:g} s: {error.message}")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0 and up to {MAX_TIMEOUT_S:g}")
    return value
