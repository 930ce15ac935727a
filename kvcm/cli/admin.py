"""`kvcm admin`: act on one manager process: give up leadership, stay out of elections, log more or less."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kvcm.cli.manager import FIRST, LEADER, add_manager_arguments, names_several, when_ready, with_manager
from kvcm.common.errors import KvcmError, NotLeader

if TYPE_CHECKING:
    from kvcm.client.admin_client import AdminClient

_LEVELS = ("debug", "info", "warn", "error")
_MAX_DELAY_MS = 86_400_000


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("admin", help="act on one manager process", description="Act on one manager process: the one at --manager.")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    demote = actions.add_parser("demote", help="give up leadership", description="Make a manager that leads give up leadership. It may win again at once.")
    demote.add_argument("--stay-out", metavar="MS", type=_delay, help="first set its campaign delay, so that another one wins")
    add_manager_arguments(demote, several=LEADER)
    demote.set_defaults(run=run_demote)

    delay = actions.add_parser(
        "campaign-delay",
        help="show or set how long it stays out of elections",
        description="Show or set how long a manager stays out of elections after it lost or gave up leadership. Forgotten when it restarts.",
    )
    delay.add_argument("delay", metavar="MS", nargs="?", type=_delay, help="milliseconds; without it, the present value is shown")
    add_manager_arguments(delay, several=FIRST)
    delay.set_defaults(run=run_delay)

    level = actions.add_parser("log-level", help="log more or less", description="Set what a manager logs, until it restarts.")
    level.add_argument("level", metavar="LEVEL", type=str.lower, choices=_LEVELS, help=f"one of {', '.join(_LEVELS)}")
    add_manager_arguments(level, several=FIRST)
    level.set_defaults(run=run_level)


def run_demote(options: argparse.Namespace) -> int:
    several = names_several(options)

    async def demote(admin: AdminClient) -> None:
        if several:
            await admin.go_to_leader()
        if options.stay_out is not None:
            await admin.set_campaign_delay(options.stay_out)
        # Not repeated while the node says that it does not lead: that is an answer here.
        try:
            await admin.leader_demote()
        except NotLeader as error:
            raise NotLeader(f"{error.message}; {await _who_leads(admin)}") from error

    with_manager(options, demote)
    print("leadership given up")
    return 0


async def _who_leads(admin: AdminClient) -> str:
    try:
        leader = (await admin.cluster_info()).leader
    except KvcmError:
        leader = None
    if leader is None or not leader.host:
        return "it knows of no node that does"
    host = f"[{leader.host}]" if ":" in leader.host else leader.host
    return f"{leader.node_id} does, at {host}:{leader.admin_rpc_port}"


def run_delay(options: argparse.Namespace) -> int:
    if options.delay is not None:
        with_manager(options, lambda admin: when_ready(lambda: admin.set_campaign_delay(options.delay), options))
    print(f"campaign delay: {with_manager(options, lambda admin: when_ready(admin.campaign_delay_ms, options))} ms")
    return 0


def run_level(options: argparse.Namespace) -> int:
    with_manager(options, lambda admin: when_ready(lambda: admin.set_log_level(options.level.upper()), options))
    print(f"log level: {options.level}")
    return 0


def _delay(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
    if not 0 <= value <= _MAX_DELAY_MS:
        raise argparse.ArgumentTypeError(f"must be a whole number of milliseconds from 0 to {_MAX_DELAY_MS}")
    return value
