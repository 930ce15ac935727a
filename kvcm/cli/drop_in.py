"""`kv_cache_manager_bin`: our manager under upstream's command line, for whoever starts upstream's server today (docs/drop-in.md).

Exit codes are upstream's: 0 after a stop by a signal and for the foreground of `-d`; 1 for help, the version and a malformed `-e`; 255 for a configuration
that cannot be used. A start that fails later ends a manager in the foreground with 1; in the background it is only logged, and the
foreground's code is 0 all the same.

The process is found by its command line (`ps`, `pgrep -f`), which is that of the script: its path and the arguments as they were given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

from kvcm import __version__
from kvcm.cli.upstream_options import parse_options
from kvcm.common.errors import InvalidArgument, KvcmError, Unsupported

PROGRAM: Final = "kv_cache_manager_bin"
BAD_CONFIGURATION: Final = 255
DEFAULTS: Final = {
    # Upstream removes what is still referenced when it is told to, and clean-ups written for it rely on that.
    "kvcm.registry.enforce_references": "false",
    # Its clients' tests expect the next finish to fail.
    "kvcm.write_session.keep_after_bad_mask": "false",
}
USAGE: Final = f"""usage: {PROGRAM} [options]

  -c, --config_file FILE       settings, one key=value a line
  -l, --log_config_file FILE   where logs go; without it, to stderr
  -e, --env KEY=VALUE          one setting; may be repeated, the first of a key counts
  -d, --daemon                 go on in the background
  -h, --help                   this text
  -v, --version                the version

A setting in the process environment (kvcm.service.rpc_port or kvcm_service_rpc_port) goes before -e, and -e before the file.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code. Never raises for what a user can cause."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    for warning in options.warnings:
        _say(f"warning: {warning}")
    match options.end:
        case "help":
            sys.stderr.write(USAGE)
            return 1
        case "version":
            _say(f"kvcm {__version__}")
            return 1
        case "env":
            _say("error: -e needs key=value")
            return 1
    from kvcm.cli.manager_process import Start, run_manager

    start = Start(
        program=PROGRAM,
        config_file=options.config_file,
        log_config_file=options.log_config_file,
        env=tuple(options.env),
        daemon=options.daemon,
        defaults=DEFAULTS,
        failed_start_code=0,
    )
    try:
        return run_manager(start)
    except KvcmError as error:
        for line in error.message.splitlines():
            _say(f"error: {line}")
        # Nobody else has asked for anything yet, so what is not valid or not served is in the configuration.
        return BAD_CONFIGURATION if isinstance(error, InvalidArgument | Unsupported) else 1
    except Exception as error:
        if os.environ.get("KVCM_TRACEBACK"):
            raise
        _say(f"error: the manager failed unexpectedly ({type(error).__name__}); this is a fault of kvcm, set KVCM_TRACEBACK=1 to see where")
        return 1
    except KeyboardInterrupt:
        return 1


def _say(sentence: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {sentence}\n")


if __name__ == "__main__":
    raise SystemExit(main())
