"""Wall clocks of single managers stepped by an hour: no lease is lost, none ends early, and a change of leader takes as long as ever.

    python -m faults.clocks [--kind through,etcd]

Not over `file://`: under libfaketime a thread cannot sleep (EINVAL of clock_nanosleep), as it does to wait for the folder's lock. The contract of coordinators
steps the clock of a node there (`kvcm.coordination.testing_contract`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from faults.crash_world import CrashWorld, until
from faults.fake_time import library
from kvcm.service.testing import ManagerProcess

HOUR_S: Final = 3600
_KINDS: Final = ("through", "etcd")
_TAKES_OVER_S: Final = 8.0
"""On top of the lease; generous, because the machine may be busy and the wrong answer is an hour."""


def play(world: CrashWorld, leases: float = 1.5, fail_overs: int = 2) -> list[str]:
    """Needs a world of two managers with clocks. Each step lasts so many leases. Raises AssertionError; else one sentence per step."""
    said = []
    with world.named(f"{world.kind}: stepped clocks"):
        for who, step in (("the leader", HOUR_S), ("the leader", -HOUR_S), ("the follower", HOUR_S), ("the follower", -HOUR_S)):
            term = world.term()
            leader, epoch = term
            stepped = leader if who == "the leader" else world.follower
            _step(world, stepped, step)
            end = time.monotonic() + leases * world.lease_ms / 1000
            calls = 0
            while time.monotonic() < end:
                assert world.put(world.keys(2)), f"a write failed after the clock of {who} had been stepped by {step:+d} s"
                calls += 1
                time.sleep(0.1)
            assert world.term() == term, f"leadership changed after the clock of {who} had been stepped by {step:+d} s"
            said.append(f"{who} {step:+d} s: epoch {epoch} kept, {calls} writes")
            _step(world, stepped, 0)
        for of_leader, of_follower in ((-HOUR_S, HOUR_S), (HOUR_S, -HOUR_S))[:fail_overs]:
            said.append(_fail_over(world, of_leader, of_follower))
        for clock in world.clocks:
            clock.step(0)
        world.check()
    return said


def _fail_over(world: CrashWorld, of_leader: int, of_follower: int) -> str:
    """The leader is killed while both clocks are wrong."""
    world.synced()
    (leader, epoch), follower = world.term(), world.follower
    _step(world, leader, of_leader)
    _step(world, follower, of_follower)
    time.sleep(world.lease_ms / 1000)
    leader.kill()
    began = time.monotonic()
    until(lambda: bool(world.alive) and world.leader is follower, "the follower leads")
    took = time.monotonic() - began
    assert world.term()[1] > epoch
    assert took < world.lease_ms / 1000 + _TAKES_OVER_S, f"the follower led after {took:.1f} s"
    world.recover()
    return f"the leader killed at {of_leader:+d} s, the follower at {of_follower:+d} s: took over in {took:.2f} s"


def _step(world: CrashWorld, manager: ManagerProcess, seconds: int) -> None:
    world.clocks[world.managers.index(manager)].step(seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m faults.clocks", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kind", default=",".join(_KINDS), help="kinds of stores (default: %(default)s)")
    kinds = parser.parse_args(arguments).kind.split(",")
    wrong = [kind for kind in kinds if kind not in _KINDS]
    if wrong:
        parser.error(f"there is no {wrong[0]!r}; there are {', '.join(_KINDS)}")
    if library() is None:
        print("needs Debian's package libfaketime")
        return 1
    broken = 0
    for kind in kinds:
        with (
            tempfile.TemporaryDirectory(prefix="kvcm-clocks-", ignore_cleanup_errors=True) as folder,
            CrashWorld(kind, Path(folder), 2, steppable=True) as world,
        ):
            try:
                print("\n".join(f"{kind}: {line}" for line in play(world)), flush=True)
            except AssertionError as error:
                broken += 1
                print(f"NOT MET {error}", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
