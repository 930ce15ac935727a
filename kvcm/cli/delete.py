"""`kvcm delete`: remove one thing from a manager, by name."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kvcm.cli.manager import add_manager_arguments, when_ready, with_manager

if TYPE_CHECKING:
    from kvcm.client.admin_client import AdminClient


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "delete",
        help="remove a storage, group or instance",
        description="Remove a storage, an instance group or an instance with all its blocks from a manager. What is still referenced is refused.",
    )
    parser.add_argument("what", choices=tuple(_REMOVALS), help="what to remove")
    parser.add_argument("name", metavar="NAME", help="its name, for an instance its id")
    parser.add_argument("--force", action="store_true", help="also what is still referenced: blocks on a removed storage are lost")
    add_manager_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    remove = _REMOVALS[options.what]
    with_manager(options, lambda admin: when_ready(lambda: remove(admin, options.name, options.force), options))
    print(f"{options.what} {options.name} removed")
    return 0


async def _storage(admin: AdminClient, name: str, force: bool) -> None:
    await admin.remove_storage(name, force=force)


async def _group(admin: AdminClient, name: str, force: bool) -> None:
    await admin.remove_group(name, force=force)


async def _instance(admin: AdminClient, name: str, force: bool) -> None:
    await admin.remove_instance(name, force=force)


_REMOVALS: dict[str, Callable[[AdminClient, str, bool], Awaitable[None]]] = {"storage": _storage, "group": _group, "instance": _instance}
