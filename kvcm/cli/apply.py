"""`kvcm apply`: make a manager match resource files, without any cluster.

The plan is printed as JSON or lines on standard output; notices and errors go to standard error.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from kvcm.cli.manager import add_manager_arguments, when_ready, with_manager
from kvcm.cli.output import print_json, say

if TYPE_CHECKING:
    from kvcm.client.admin_client import AdminClient
    from kvcm.resources.plan import Plan, Step

EXIT_UNCHANGED = 0
EXIT_CHANGED = 2
_WAIT_S = 10.0

_DONE = {"create": "created", "update": "updated", "enable": "enabled", "disable": "disabled", "unchanged": "unchanged"}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "apply",
        help="make a manager match resource files",
        description="Make a manager match Storage and InstanceGroup resources, the same files that Kubernetes uses. Nothing is ever removed.",
        epilog="Exit code: 0 nothing changed, 2 something changed (with --dry-run: would change), 1 error.",
    )
    parser.add_argument("-f", "--filename", metavar="PATH", action="append", required=True, help="file, directory or - for standard input; may be repeated")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and change nothing")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="format of the result (default: %(default)s)")
    # Long enough for a manager that was started together with this command.
    add_manager_arguments(parser, wait_s=_WAIT_S)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from kvcm.resources.loader import load
    from kvcm.resources.plan import check_set

    loaded = load(options.filename)
    for notice in loaded.notices:
        say(f"note: {notice}")
    if not loaded.resources:
        return EXIT_UNCHANGED
    # Before anything is sent: a bad set is the same error whether or not a manager runs.
    check_set(loaded.resources)
    return with_manager(options, lambda admin: _apply(admin, options, loaded.resources))


async def _apply(admin: AdminClient, options: argparse.Namespace, resources: Any) -> int:
    from kvcm.resources.execute import read_plan, run_plan

    plan = await when_ready(lambda: read_plan(resources, admin), options)
    for notice in plan.notices:
        say(f"note: {notice}")
    text = options.output == "text"
    if text:
        _print_unchanged(plan)
    if options.dry_run:
        if text:
            _print_would(plan)
    else:
        await run_plan(plan, admin, on_done=_print_done if text else lambda _step: None)
    if text:
        _print_summary(plan, options.dry_run)
    else:
        print_json(_document(plan, options.dry_run))
    return EXIT_CHANGED if plan.changes else EXIT_UNCHANGED


def _print_unchanged(plan: Plan) -> None:
    for step in plan.steps:
        if step.action == "unchanged":
            _print_step(step, _DONE[step.action])


def _print_would(plan: Plan) -> None:
    for step in plan.steps:
        if step.action != "unchanged":
            _print_step(step, f"would be {_DONE[step.action]}")


def _print_done(step: Step) -> None:
    _print_step(step, _DONE[step.action])


def _print_step(step: Step, word: str) -> None:
    print(f"{step.kind} {step.name} {word}", flush=True)
    for change in step.changes:
        print(f"    {change}", flush=True)


def _print_summary(plan: Plan, dry_run: bool) -> None:
    if not plan.changes:
        print("nothing to change")
        return
    plural = "" if plan.changes == 1 else "s"
    print(f"{plan.changes} change{plural} would be made" if dry_run else f"{plan.changes} change{plural} made")


def _document(plan: Plan, dry_run: bool) -> dict[str, Any]:
    steps = [
        {
            "action": str(step.action),
            "kind": step.kind,
            "name": step.name,
            "changes": [{"path": change.path, "before": change.before, "after": change.after} for change in step.changes],
        }
        for step in plan.steps
    ]
    return {"dryRun": dry_run, "changed": plan.changes, "steps": steps, "notices": list(plan.notices)}
