"""`kvcm accounts`: who may log in to a manager. Passwords come from a file or are asked for, and never stand on a command line."""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path

from kvcm.cli.manager import add_manager_arguments, when_ready, with_manager
from kvcm.common.errors import InvalidArgument

_MAX_PASSWORD_CHARS = 1024


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Add and delete accounts of a manager; kvcm get accounts lists them."
    parser = subparsers.add_parser("accounts", help="add and delete accounts", description=text)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="add an account", description="Add an account.")
    add.add_argument("name", metavar="NAME", help="name of the account")
    add.add_argument("--role", choices=("user", "admin"), default="user", help="what it may do: read, or everything (default: %(default)s)")
    add.add_argument("--password-file", metavar="FILE", help="file with the password, - for standard input (default: it is asked for)")
    add_manager_arguments(add)
    add.set_defaults(run=run_add)
    delete = actions.add_parser("delete", help="delete an account", description="Delete an account.")
    delete.add_argument("name", metavar="NAME", help="name of the account")
    add_manager_arguments(delete)
    delete.set_defaults(run=run_delete)


def run_add(options: argparse.Namespace) -> int:
    from kvcm.client.admin_types import AccountRole

    password = _password(options.password_file)
    role = AccountRole(options.role)
    with_manager(options, lambda admin: when_ready(lambda: admin.add_account(options.name, password, role), options))
    print(f"account {options.name} added")
    return 0


def run_delete(options: argparse.Namespace) -> int:
    with_manager(options, lambda admin: when_ready(lambda: admin.delete_account(options.name), options))
    print(f"account {options.name} deleted")
    return 0


def _password(file: str | None) -> str:
    text = _asked() if file is None else _read(file).strip("\r\n")
    if not text or len(text) > _MAX_PASSWORD_CHARS or not text.isprintable():
        raise InvalidArgument(f"the password must have 1 to {_MAX_PASSWORD_CHARS} characters and no control characters")
    return text


def _asked() -> str:
    if not sys.stdin.isatty():
        raise InvalidArgument("there is no terminal to ask for the password; give it with --password-file FILE, or --password-file - on standard input")
    first = getpass.getpass("password: ")
    if getpass.getpass("once more: ") != first:
        raise InvalidArgument("the two passwords differ")
    return first


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read(_MAX_PASSWORD_CHARS + 3)
        with Path(file).open(encoding="utf-8") as opened:
            return opened.read(_MAX_PASSWORD_CHARS + 3)
    except OSError as error:
        raise InvalidArgument(f"--password-file {file} cannot be read: {error.strerror or 'unknown reason'}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"--password-file {file} is not UTF-8 text") from None
