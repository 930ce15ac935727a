"""`kvcm snapshot`: a manager's configuration into a file, and back."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from kvcm.cli.manager import add_manager_arguments, when_ready, with_manager
from kvcm.cli.output import say
from kvcm.common.errors import InvalidArgument

_MAX_CHARS = 64 << 20


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("snapshot", help="save and load a manager's configuration", description="Save and load a manager's configuration.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    save = actions.add_parser("save", help="write it to a file", description="Write a manager's configuration to a file that only you can read.")
    save.add_argument("file", metavar="FILE", help="the file to write; - for standard output")
    add_manager_arguments(save)
    save.set_defaults(run=run_save)
    text = "Make all that a file names as it says, or nothing. What it does not name stays."
    load = actions.add_parser("load", help="make a manager as a file says", description=text)
    load.add_argument("file", metavar="FILE", help="a file of kvcm snapshot save; - for standard input")
    load.add_argument("--force", action="store_true", help="also where a storage that is in use moves, or a group is missing")
    add_manager_arguments(load)
    load.set_defaults(run=run_load)


def run_save(options: argparse.Namespace) -> int:
    text = with_manager(options, lambda admin: when_ready(admin.save_snapshot, options))
    if options.file == "-":
        print(text)
        return 0
    _write(Path(options.file), text + "\n")
    say(f"snapshot written to {options.file}")
    return 0


def run_load(options: argparse.Namespace) -> int:
    text = _read(options.file)
    with_manager(options, lambda admin: when_ready(lambda: admin.load_snapshot(text, force=options.force), options))
    print("snapshot loaded")
    return 0


def _write(path: Path, text: str) -> None:
    """In one step: a reader sees the old file or the whole new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InvalidArgument(f"{path} cannot be written: {error.strerror or 'unknown reason'}") from None


def _read(file: str) -> str:
    try:
        if file == "-":
            text = sys.stdin.read(_MAX_CHARS + 1)
        else:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(_MAX_CHARS + 1)
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror or 'unknown reason'}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"{file} is not UTF-8 text") from None
    if len(text) > _MAX_CHARS:
        raise InvalidArgument(f"{file} has more than {_MAX_CHARS} characters, which no snapshot has")
    return text.strip()
