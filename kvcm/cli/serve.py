"""`kvcm serve`: run a manager until a signal stops it (wire contract 1.2, 1.3).

When calls are answered it prints one line, and writes the addresses as JSON to `--port-file`, in one step, so that scripts can wait for the file.
Unlike upstream, an unknown option is an error, and `-d` does not exist: a supervisor runs the process in the background.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kvcm.common.errors import InvalidArgument

if TYPE_CHECKING:
    from kvcm.service.cluster import Endpoint

# What `package/etc` of upstream sets; the code's own default, 0, means any free port.
DEFAULT_PORTS = {
    "kvcm.service.rpc_port": 6381,
    "kvcm.service.http_port": 6382,
    "kvcm.service.admin_rpc_port": 6491,
    "kvcm.service.admin_http_port": 6492,
}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("serve", help="run a manager", description="Run a manager until SIGTERM or Ctrl-C.")
    parser.add_argument("-c", "--config_file", "--config-file", metavar="FILE", help="settings, one key=value a line")
    parser.add_argument("-e", "--env", metavar="KEY=VALUE", action="append", default=[], help="one setting; may be repeated")
    parser.add_argument("--port-file", metavar="FILE", help="write the addresses there as JSON when calls are answered")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from kvcm.config.settings_load import load_settings

    text = with_default_ports(_read(options.config_file) if options.config_file else "")
    loaded = load_settings(text, options.env, os.environ)

    from kvcm.service.logging_setup import set_up_logging
    from kvcm.service.run import run as serve

    writer = set_up_logging(loaded.settings.logger_log_level)
    for warning in loaded.warnings:
        logging.getLogger("kvcm.cli.serve").warning("%s", warning)

    def on_ready(own: Endpoint) -> None:
        addresses = json.dumps(asdict(own) | {"pid": os.getpid()})
        if options.port_file:
            _write(Path(options.port_file), addresses)
        with contextlib.suppress(OSError):  # nobody has to read it
            print(f"kvcm is ready: {addresses}", flush=True)

    try:
        serve(loaded.settings, on_ready)
    finally:
        writer.finish()
    return 0


def with_default_ports(config_text: str) -> str:
    """The configuration with a line for each port that it does not mention, at its end so that line numbers in messages stay right."""
    from kvcm.config.settings_source import read_file

    given, _ = read_file(config_text)
    missing = [f"{key}={port}" for key, port in DEFAULT_PORTS.items() if key not in given]
    return "\n".join([config_text, *missing])


def _read(path: str) -> str:
    from kvcm.config.settings_source import MAX_CONFIG_CHARS

    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(MAX_CONFIG_CHARS + 1)
    except OSError as error:
        raise InvalidArgument(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"the configuration file {path} is not UTF-8 text") from None


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InvalidArgument(f"the port file {path} cannot be written: {error.strerror}") from None
