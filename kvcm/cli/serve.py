"""`kvcm serve`: run a manager until a signal stops it.

The same manager and the same options as `kv_cache_manager_bin` (see `drop_in`), but strict: an unknown option is an error, `-d` fails when the manager
does, ports have the defaults that the documentation names. When calls are answered it prints one line, and writes the addresses as JSON to
`--port-file`, in one step, so that scripts can wait for the file.
"""

from __future__ import annotations

import argparse

from kvcm import __version__
from kvcm.cli.manager_process import Start, run_manager

# What upstream's packaged configuration sets; the code's own default, 0, means any free port.
DEFAULT_PORTS = {
    "kvcm.service.rpc_port": "6381",
    "kvcm.service.http_port": "6382",
    "kvcm.service.admin_rpc_port": "6491",
    "kvcm.service.admin_http_port": "6492",
}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("serve", help="run a manager", description="Run a manager until SIGTERM or Ctrl-C.")
    parser.add_argument("-c", "--config_file", "--config-file", metavar="FILE", default="", help="settings, one key=value a line")
    parser.add_argument("-l", "--log_config_file", "--log-config-file", metavar="FILE", default="", help="where logs go (docs/drop-in.md); else to stderr")
    parser.add_argument("-e", "--env", metavar="KEY=VALUE", action="append", default=[], help="one setting; may be repeated")
    parser.add_argument("-d", "--daemon", action="store_true", help="go on in the background; exit code 0 when it serves")
    parser.add_argument("-v", "--version", action="version", version=f"kvcm {__version__}", help="print the version and end")
    parser.add_argument("--port-file", metavar="FILE", default="", help="write the addresses there as JSON when calls are answered")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return run_manager(
        Start(
            program="kvcm serve",
            config_file=options.config_file,
            log_config_file=options.log_config_file,
            env=tuple(options.env),
            daemon=options.daemon,
            port_file=options.port_file,
            defaults=DEFAULT_PORTS,
        )
    )
