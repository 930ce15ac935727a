"""Run another program to its end: bounded, logged, and never left behind.

Danger: a compiler started by `make` is a grandchild. Each command therefore gets a session of its own, and the whole process group
ends when the command fails, runs out of time, or this process is interrupted.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import BedError

_TAIL_LINES = 20


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Its standard output (empty if `log` takes it). Seconds in `timeout`; BedError if it fails, with the last lines it wrote."""
    words = [str(word) for word in argv]
    name = Path(words[0]).name
    try:
        if log is None:
            return _finish(words, timeout, cwd, env, stdin, None)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            return _finish(words, timeout, cwd, env, stdin, sink.fileno())
    except FileNotFoundError as error:
        raise BedError(f"the program {name} is not on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise BedError(f"{name} was not done after {timeout:.0f} s: {' '.join(words)}{tail(log)}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip() or (error.stdout or "").strip()
        raise BedError(f"{name} failed with exit code {error.returncode}: {' '.join(words)}\n{said}{tail(log)}") from error


def _finish(words: list[str], timeout: float, cwd: Path | None, env: Mapping[str, str] | None, stdin: str | None, sink: int | None) -> str:
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE if sink is None else sink,
        stderr=subprocess.PIPE if sink is None else sink,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except BaseException:
        _end_group(process)
        raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, words, out, err)
    return out or ""


def _end_group(process: subprocess.Popen[str]) -> None:
    """The pid is still ours: it was not waited for yet."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def tail(log: Path | None) -> str:
    """The last lines of a log, for an error message."""
    if log is None or not log.is_file():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n" + "\n".join(lines) if lines else ""
