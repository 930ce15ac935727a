"""`kvcm replay`: a request trace through the real client, with real bytes, against a running manager or one of its own.

The table goes to standard output, the progress bar (only on a terminal) and notices to standard error, the exact numbers to `--json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcm.cli.manager import add_security_arguments, manager_addresses, security_of
from kvcm.cli.output import print_table, say
from kvcm.common.errors import InvalidArgument

if TYPE_CHECKING:
    from kvcm.cli.replay_target import Target
    from kvcm.client import ClientConfig
    from kvcm.client.replay import Audit, ReplayReport, Usage

EXIT_MISMATCH = 3
_SPEC = "kv"
_META = "127.0.0.1:6381"
_MANAGER_HELP = (
    "meta gRPC address of a running manager; several with commas, or static://HOST:PORT,... or dns://NAME:PORT: the one that leads. "
    "It must see its storage where this machine does"
)
_TRANSFER_MS = 60_000
_MAX_BLOCK_BYTES = 1 << 30
_MAX_LIMIT = (1 << 63) - 1


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="replay a request trace with real bytes",
        description="Replay a request trace as an inference engine would: look up, load and verify, write. Without --manager a manager of its own is "
        "started, with an unlimited group on a temporary folder.",
        epilog="Exit code: 0 done, 3 bytes that were read were not those written, 1 any error, also when the final checks find a contradiction.",
    )
    parser.add_argument("trace", metavar="TRACE", help="'conversation' (comes with kvcm) or a Mooncake trace ending in .jsonl, .jsonl.gz or .jsonl.xz")
    parser.add_argument("--manager", metavar="HOST:PORT", help=_MANAGER_HELP)
    parser.add_argument("--metrics-url", metavar="URL", help="with --manager: metrics page of the one that leads, to compare the reported usage")
    parser.add_argument("--group", default="default", help="with --manager: instance group (default: %(default)s)")
    parser.add_argument("--instance", default="replay", help="instance id (default: %(default)s)")
    parser.add_argument("--block-bytes", metavar="N", type=_number(1, _MAX_BLOCK_BYTES), default=64, help="real bytes of a block (default: %(default)s)")
    parser.add_argument("--limit", metavar="N", type=_number(1, _MAX_LIMIT), help="only the first N requests")
    parser.add_argument("--concurrency", metavar="N", type=_number(1, 64), default=1, help="requests in flight; starts keep their order (default: %(default)s)")
    parser.add_argument("--verify", choices=("all", "none"), default="all", help="compare every byte that is read (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the exact numbers there")
    parser.add_argument("--work-dir", metavar="DIR", help="without --manager: where the temporary folder is made (default: the system's place)")
    parser.add_argument("--timeout", metavar="SECONDS", type=_number(1, 3600), default=10, help="longest wait for each answer (default: %(default)s)")
    add_security_arguments(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check(options)
    from kvcm.client.replay import read_trace

    # All of it before anything happens: a bad line is refused while nothing has been written yet.
    requests = sum(1 for _ in read_trace(options.trace, limit=options.limit))
    if not requests:
        raise InvalidArgument("the trace has no requests")

    from kvcm.cli.replay_target import Target, embedded

    if options.manager:
        running = Target(_addresses(options.manager), options.group, options.metrics_url or "", fresh=False)
        return _replay(options, running, requests)
    with embedded(options.work_dir) as own:
        return _replay(options, own, requests)


def _replay(options: argparse.Namespace, target: Target, requests: int) -> int:
    from kvcm.client import InitParams, ManagerClient, RoleType
    from kvcm.client.replay import Replay, problems, read_trace, take_audit

    with ManagerClient.create(_config(options, target), InitParams(RoleType.HYBRID, _SPEC)) as client:
        replay = Replay(client, spec_name=_SPEC, block_bytes=options.block_bytes, verify=options.verify == "all", concurrency=options.concurrency)
        before = _usage(target, options)
        with _progress(requests) as on_progress:
            report = replay.run(read_trace(options.trace, limit=options.limit), on_progress=on_progress)
        audit = take_audit(client.meta, replay.oracle.distinct_keys)
        usage = _both(before, _usage(target, options))
    wrong = problems(report, audit, usage, fresh=target.fresh, sequential=options.concurrency == 1)
    _print(options, report, audit, usage)
    if options.json:
        _write(Path(options.json), _document(options, report, audit, usage, wrong))
    for sentence in wrong:
        say(f"error: {sentence}")
    if report.mismatches:
        say(f"error: {report.mismatches} hit blocks could not be read back as they were written")
        return EXIT_MISMATCH
    return 1 if wrong else 0


def _addresses(text: str) -> tuple[str, ...]:
    # An empty text is a mistake here, and no wish for the default: nobody wants to write into a manager by accident.
    return manager_addresses(text or ",", default=_META)


def _check(options: argparse.Namespace) -> None:
    """What can be wrong with the options, before anything starts."""
    from kvcm.client.seeds import Seeds

    if options.manager is not None:
        Seeds(_addresses(options.manager))
    if options.metrics_url and not options.manager:
        raise InvalidArgument("--metrics-url belongs to --manager; a manager of its own is asked anyway")
    if options.manager and options.work_dir:
        raise InvalidArgument("--work-dir is for a manager of its own; a running one has its own storages")
    if options.work_dir and not Path(options.work_dir).is_dir():
        raise InvalidArgument(f"--work-dir {options.work_dir} is not a folder")
    if options.json and (Path(options.json).is_dir() or not os.access(Path(options.json).parent, os.W_OK)):
        raise InvalidArgument(f"--json {options.json} cannot be written; its folder must exist and be writable")


def _config(options: argparse.Namespace, target: Target) -> ClientConfig:
    from kvcm.client import ClientConfig
    from kvcm.client.replay import BLOCK_TOKENS

    config = ClientConfig.parse(
        {
            "instance_group": target.group,
            "instance_id": options.instance,
            "block_size": BLOCK_TOKENS,
            "address": list(target.addresses),
            "location_spec_infos": {_SPEC: options.block_bytes},
            "model_deployment": {"model_name": "replay", "dtype": "bytes"},
            "meta_channel_config": {"connection_timeout": options.timeout * 1000, "call_timeout": options.timeout * 1000},
            "sdk_config": {"timeout_config": {"put_timeout_ms": _TRANSFER_MS, "get_timeout_ms": _TRANSFER_MS}},
        }
    )
    # A manager of our own is in this process: plain text, no identity.
    return config if target.fresh else replace(config, security=security_of(options))


def _usage(target: Target, options: argparse.Namespace) -> int | None:
    from kvcm.client.replay import fetch_metrics, usage_bytes
    from kvcm.client.security import PLAIN

    if not target.metrics_url:
        return None
    security = PLAIN if target.fresh else security_of(options)
    return usage_bytes(fetch_metrics(target.metrics_url, options.timeout, security), target.group, options.instance)


def _both(before: int | None, after: int | None) -> Usage | None:
    from kvcm.client.replay import Usage

    return Usage(before, after) if before is not None and after is not None else None


@contextmanager
def _progress(requests: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=requests)
        yield lambda done: bar.update(task, completed=done)


def _print(options: argparse.Namespace, report: ReplayReport, audit: Audit, usage: Usage | None) -> None:
    of_blocks = report.hit_blocks / report.total_blocks if report.total_blocks else 0.0
    rows: list[tuple[str, str, str]] = [
        ("requests", f"{report.requests:,}", f"{report.wall_seconds:.1f} s, {options.concurrency} in flight"),
        ("blocks", f"{report.total_blocks:,}", f"of {report.block_tokens} tokens, {report.block_bytes:,} bytes each"),
        ("hit blocks", f"{report.hit_blocks:,}", f"{of_blocks:.2%} of blocks; an empty unlimited cache has {report.possible_hit_blocks:,}"),
        ("hit tokens", f"{report.hit_tokens:,}", f"{report.token_hit_rate:.2%} of {report.input_tokens:,} tokens"),
        ("bytes written", f"{report.bytes_written:,}", f"{report.written_blocks:,} blocks"),
        ("bytes read", f"{report.bytes_read:,}", ""),
        ("bytes verified", f"{report.bytes_verified:,}", f"{report.mismatches:,} blocks were wrong" if report.mismatches else ""),
        ("blocks now", f"{sum(audit.states.values()):,}", ", ".join(f"{count:,} {state}" for state, count in sorted(audit.states.items()))),
        ("bytes now", f"{audit.stored_bytes:,}", f"reported usage {usage.after:,}" if usage else "reported usage not asked (--metrics-url)"),
    ]
    if report.refused_blocks:
        rows.append(("blocks refused", f"{report.refused_blocks:,}", "a quota or limit of the group is full"))
    width = max(len(value) for _, value, _ in rows)
    print_table(("REPLAY", "VALUE".rjust(width), "NOTE"), [(name, value.rjust(width), note) for name, value, note in rows])
    print()
    steps = [(step, latencies.summary()) for step, latencies in report.latencies.items()]
    fields = ("count", "p50_ms", "p95_ms", "p99_ms", "max_ms")
    print_table(
        ("STEP", "CALLS", "P50-MS", "P95-MS", "P99-MS", "MAX-MS"),
        [(step, *(f"{summary[field]:,.2f}" if field != "count" else f"{summary[field]:,.0f}" for field in fields)) for step, summary in steps],
    )


def _document(options: argparse.Namespace, report: ReplayReport, audit: Audit, usage: Usage | None, wrong: list[str]) -> dict[str, Any]:
    return {
        "trace": options.trace,
        **report.document(),
        "concurrency": options.concurrency,
        "states": audit.states,
        "stored_bytes": audit.stored_bytes,
        "usage_bytes": usage.after if usage else None,
        "problems": wrong,
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"--json {path} could not be written: {error.strerror or 'unknown reason'}") from error


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
        return value

    return read
