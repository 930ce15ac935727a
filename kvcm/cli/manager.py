"""What commands that talk to a manager share: its address, who is calling, time-outs, and waiting for a manager that is just starting."""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from kvcm.common.errors import InvalidArgument, KvcmError, NotLeader, NotReady
from kvcm.common.service_discovery import is_discovery_url

if TYPE_CHECKING:
    from kvcm.client.admin_client import AdminClient
    from kvcm.client.security import ClientSecurity

MANAGER_VARIABLE = "KVCM_MANAGER"
DEFAULT_MANAGER = "127.0.0.1:6491"
DEFAULT_TIMEOUT_S = 10.0
MAX_TIMEOUT_S = 3600.0
_RETRY_PAUSE_S = 0.2
# Option -> environment variable that stands in for it, metavar, help. Only names of files and accounts: a secret on a command line is everybody's.
_SECURITY = {
    "--token-file": ("KVCM_TOKEN_FILE", "FILE", "file with the token to send"),
    "--user": ("KVCM_USER", "NAME", "account to log in with, instead of a token"),
    "--user-password-file": ("KVCM_USER_PASSWORD_FILE", "FILE", "file with the password of --user"),
    "--tls-ca": ("KVCM_TLS_CA", "FILE", "TLS, and trust the authorities in this PEM file"),
    "--tls-cert": ("KVCM_TLS_CERT", "FILE", "TLS, and show this certificate (PEM)"),
    "--tls-key": ("KVCM_TLS_KEY", "FILE", "private key of --tls-cert (PEM)"),
    "--tls-server-name": ("KVCM_TLS_SERVER_NAME", "NAME", "TLS, and expect this name in the manager's certificate"),
}

_Result = TypeVar("_Result")


LEADER = "the one that leads"
FIRST = "the first that can be reached"


def add_manager_arguments(
    parser: argparse.ArgumentParser,
    *,
    wait_s: float = 0.0,
    several: str = LEADER,
    help_text: str = f"admin gRPC address of the manager; several with commas, or dns://NAME:PORT: {{}} (default: ${MANAGER_VARIABLE}, else {DEFAULT_MANAGER})",
) -> None:
    """`wait_s`: the default of --wait. `several`: which one of several addresses the command uses."""
    parser.add_argument("--manager", metavar="HOST:PORT", default=None, help=help_text.format(several))
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=DEFAULT_TIMEOUT_S, help="longest wait for each answer (default: %(default)g)")
    wait = "try so long to reach a manager that refuses connections (default: %(default)g)"
    parser.add_argument("--wait", metavar="SECONDS", type=_seconds_or_none, default=wait_s, help=wait)
    add_security_arguments(parser)


def add_security_arguments(parser: argparse.ArgumentParser) -> None:
    """Who is calling, and TLS. Read them with `security_of`."""
    group = parser.add_argument_group("identity and TLS", "each also as an environment variable, such as KVCM_TOKEN_FILE or KVCM_TLS_CA")
    for option, (_, metavar, text) in _SECURITY.items():
        group.add_argument(option, metavar=metavar, default=None, help=text)
    group.add_argument("--tls", action="store_true", help="TLS, and trust the authorities of this machine")


def security_of(options: argparse.Namespace) -> ClientSecurity:
    """Raises InvalidClientConfig."""
    from kvcm.client.security import ClientSecurity

    given = {}
    for option, (variable, _, _) in _SECURITY.items():
        value = getattr(options, option.removeprefix("--").replace("-", "_"))
        given[option] = (os.environ.get(variable) or "") if value is None else value
    # An identity on the command line replaces the one of the environment as a whole.
    if options.token_file is not None:
        given["--user"], given["--user-password-file"] = options.user or "", options.user_password_file or ""
    elif options.user is not None:
        given["--token-file"] = ""
    return ClientSecurity.of(
        token_file=given["--token-file"],
        user=given["--user"],
        password_file=given["--user-password-file"],
        ca_file=given["--tls-ca"],
        cert_file=given["--tls-cert"],
        key_file=given["--tls-key"],
        server_name=given["--tls-server-name"],
        tls=options.tls,
    )


def manager_address(option: str | None, variable: str = MANAGER_VARIABLE, default: str = DEFAULT_MANAGER) -> str:
    """The address to use; raises InvalidArgument for a text that is no `host:port`."""
    text = option or os.environ.get(variable) or default
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536 or "/" in text:
        source = "--manager" if option else variable
        raise InvalidArgument(f"{source} must be host:port, such as {default}")
    return text


def manager_addresses(option: str | None, variable: str = MANAGER_VARIABLE, default: str = DEFAULT_MANAGER) -> tuple[str, ...]:
    """Several managers, or where they can be found; raises InvalidArgument."""
    text = option or os.environ.get(variable) or default
    if is_discovery_url(text):
        return (text,)
    parts = text.split(",")
    return tuple(manager_address(part.strip() or ",", default=default) for part in parts) if "," in text else (manager_address(option, variable, default),)


def names_several(options: argparse.Namespace) -> bool:
    """May the addresses stand for more than one node?"""
    addresses = manager_addresses(options.manager)
    return len(addresses) > 1 or is_discovery_url(addresses[0])


def with_manager(options: argparse.Namespace, work: Callable[[AdminClient], Awaitable[_Result]]) -> _Result:
    """Connect, run `work`, disconnect. Raises KvcmError."""
    import asyncio

    addresses = manager_addresses(options.manager)
    security = security_of(options)

    async def run() -> _Result:
        # Here and not above: loading gRPC takes longer than everything else that `kvcm --help` does.
        from kvcm.client.admin_client import AdminClient

        async with AdminClient(addresses[0] if len(addresses) == 1 else addresses, timeout_s=options.timeout, security=security) as admin:
            return await work(admin)

    return asyncio.run(run())


async def when_ready(call: Callable[[], Awaitable[_Result]], options: argparse.Namespace) -> _Result:
    """Repeat a call that did nothing: while the manager is starting or has no leader for --timeout, while nobody listens for --wait.

    Good for changes too: an answer that says "not the leader" or "not ready", and a connection that is refused, mean that nothing was done.
    """
    from kvcm.client.admin_errors import ManagerUnreachable

    return await _repeat(call, lambda error: options.wait if isinstance(error, ManagerUnreachable) else options.timeout)


async def when_reachable(call: Callable[[], Awaitable[_Result]], options: argparse.Namespace) -> _Result:
    """Repeat a call while nobody listens, for --wait."""
    from kvcm.client.admin_errors import ManagerUnreachable

    return await _repeat(call, lambda error: options.wait if isinstance(error, ManagerUnreachable) else 0.0)


async def _repeat(call: Callable[[], Awaitable[_Result]], limit_of: Callable[[KvcmError], float]) -> _Result:
    import asyncio

    clock = asyncio.get_running_loop().time
    started = clock()
    while True:
        try:
            return await call()
        except (NotReady, NotLeader) as error:
            limit = limit_of(error)
            if clock() + _RETRY_PAUSE_S >= started + limit:
                if not limit:
                    raise
                raise _gave_up(error, limit) from error
        await asyncio.sleep(_RETRY_PAUSE_S)


def _gave_up(error: KvcmError, limit_s: float) -> KvcmError:
    return type(error)(f"the manager was not ready within {limit_s:g} s: {error.message}")


def _seconds(text: str) -> float:
    value = _number(text)
    if not 0 < value <= MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0 and up to {MAX_TIMEOUT_S:g}")
    return value


def _seconds_or_none(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0 to {MAX_TIMEOUT_S:g}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0
