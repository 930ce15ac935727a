"""`python -m faults.crash_matrix`: every fail point over every kind of store: crashes, lost answers, refusals.

    python -m faults.crash_matrix [--kind file,through,behind,etcd] [--action crash,unknown,error] [--point PREFIX]

Write-through is played twice: with one manager that is started again, and with a warm follower that takes over, and so loads nothing. Ends with 1 when
something was not repaired.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from faults.crash_stores import KINDS
from faults.crash_stories import Case, cases, crash, lose_answer
from faults.crash_world import CrashWorld

ACTIONS = ("crash", "unknown", "error")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.crash_matrix", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kind", default=",".join(KINDS), help="kinds of stores (default: %(default)s)")
    parser.add_argument("--action", default=",".join(ACTIONS), help="what happens at the points (default: %(default)s)")
    parser.add_argument("--point", default="", help="only points that begin so")
    options = parser.parse_args(arguments)
    kinds, actions = options.kind.split(","), options.action.split(",")
    for names, known in ((kinds, KINDS), (actions, ACTIONS)):
        wrong = [name for name in names if name not in known]
        if wrong:
            parser.error(f"there is no {wrong[0]!r}; there are {', '.join(known)}")
    repaired: Counter[tuple[str, int, str]] = Counter()
    broken: list[str] = []
    for kind in kinds:
        for nodes in (1, 2) if kind == "through" else (1,):
            for action in actions:
                wanted = [case for case in cases(kind) if case.point.startswith(options.point) and not (action == "error" and case.point.endswith(".after"))]
                if nodes > 1:
                    wanted = [case for case in wanted if not case.point.startswith("blocks.load.")]
                repaired[kind, nodes, action] = _play(kind, nodes, action, wanted, broken)
    print("\nstores | managers | action | repaired\n--- | --- | --- | ---")
    for (kind, nodes, action), count in repaired.items():
        print(f"{kind} | {nodes} | {action} | {count}")
    for what in broken:
        print(f"NOT REPAIRED {what}")
    print(f"\n{'everything was repaired' if not broken else f'{len(broken)} cases were not repaired'}")
    return 1 if broken else 0


def _play(kind: str, nodes: int, action: str, wanted: list[Case], broken: list[str]) -> int:
    """How many were repaired. A house in which one was not is left for a new one."""
    done = 0
    left = list(wanted)
    while left:
        with tempfile.TemporaryDirectory(prefix="kvcm-crash-", ignore_cleanup_errors=True) as folder, CrashWorld(kind, Path(folder), nodes) as world:
            while left:
                case, began = left.pop(0), time.monotonic()
                try:
                    if action == "crash":
                        crash(world, case)
                    else:
                        lose_answer(world, case, action)
                except AssertionError as error:
                    broken.append(str(error).partition("\n")[0])
                    print(f"{kind} {nodes} {action} {case}: NOT REPAIRED\n{error}\n", flush=True)
                    break
                done += 1
                print(f"{kind} {nodes} {action} {case}: {time.monotonic() - began:.1f} s", flush=True)
    return done


if __name__ == "__main__":
    sys.exit(main())
