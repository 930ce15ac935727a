"""The command `kvcm`.

Each command module has `register(subparsers)`, which adds its parser and sets `run=<function(options) -> exit code>`. A new command is one more
entry in `_COMMANDS`. Command modules import what is heavy inside their functions, so that `kvcm --help` is quick.

Exit codes: 0 done (apply: nothing had to change), 2 apply changed something (with --dry-run: would change), 1 any error, also of usage, 3 replay read
bytes that were not those written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from kvcm.cli import accounts, admin, apply, call, delete, get, replay, serve, snapshot
from kvcm.cli.output import say
from kvcm.common.errors import KvcmError

TRACEBACK_VARIABLE = "KVCM_TRACEBACK"
# Extend here.
_COMMANDS: tuple[Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None], ...] = (
    accounts.register,
    admin.register,
    apply.register,
    call.register,
    delete.register,
    get.register,
    replay.register,
    serve.register,
    snapshot.register,
)


class _Parser(argparse.ArgumentParser):
    """argparse exits with 2 on a usage error, which here would read as "changed"."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="kvcm", description="Control plane for the KV caches of LLM inference.")
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser]
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for register in _COMMANDS:
        register(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Never raises for what a user can cause; returns the exit code."""
    try:
        options = build_parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KvcmError as error:
        for line in error.message.splitlines() or ["the command failed"]:
            say(f"error: {line}")
        return 1
    except BrokenPipeError:
        # Whoever read our output has gone; keep Python from failing once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        say(f"error: kvcm failed unexpectedly ({type(error).__name__}); this is a fault of kvcm, set {TRACEBACK_VARIABLE}=1 to see where")
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
