"""What is done to pass each fail point: one story per operation. A point without a story would be a dead one, and a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from faults.crash_world import CrashWorld, until
from kvcm.common.failpoints import OPERATIONS

_ALL = frozenset({"file", "through", "behind", "etcd"})


@dataclass(frozen=True, slots=True)
class Story:
    """`act` passes the point, on the leader or (`promotes`) on the node that takes over. `passes`: which passes are tried. `kinds`: with which stores there is
    such a point."""

    act: Callable[[CrashWorld], object]
    promotes: bool = False
    passes: tuple[int, ...] = (1,)
    kinds: frozenset[str] = field(default=_ALL)


def _write(world: CrashWorld) -> None:
    world.put(world.keys(3))


def _remove(world: CrashWorld) -> None:
    world.remove(sorted(world.kept)[:2])


def _register(world: CrashWorld) -> None:
    world.register(f"instance-{world.keys(1)[0]}")


def _wait(world: CrashWorld) -> None:
    """It happens by itself."""


STORIES: Final[Mapping[str, Story]] = {
    "blocks.fence": Story(CrashWorld.demote, promotes=True),
    "blocks.load": Story(CrashWorld.demote, promotes=True),
    "blocks.add": Story(_write),
    "blocks.serve": Story(_write),
    "blocks.condemn": Story(_remove),
    "blocks.sync": Story(_remove),
    "bytes.delete": Story(_remove),
    "blocks.bury": Story(_remove),
    "blocks.flush": Story(_write, kinds=frozenset({"behind"})),
    "registry.fence": Story(CrashWorld.demote, promotes=True),
    "registry.load": Story(CrashWorld.demote, promotes=True),
    "registry.apply": Story(_register),
    "registry.replace": Story(_register, kinds=frozenset({"file"})),
    "registry.transaction": Story(CrashWorld.load_many, kinds=frozenset({"etcd"}), passes=(1, 2, 3, 4, 5, 6, 7)),
    "coordinator.campaign": Story(CrashWorld.demote, promotes=True),
    "coordinator.keep_alive": Story(_wait, passes=(1, 3)),
    "coordinator.resign": Story(CrashWorld.demote),
}


@dataclass(frozen=True, slots=True)
class Case:
    point: str
    at: int

    def __str__(self) -> str:
        return self.point if self.at == 1 else f"{self.point}@{self.at}"


def cases(kind: str) -> Iterator[Case]:
    """All of them, in the order in which points are listed."""
    for operation in OPERATIONS:
        story = STORIES[operation]
        if kind in story.kinds:
            for side in ("before", "after"):
                for at in story.passes:
                    yield Case(f"{operation}.{side}", at)


def story_of(case: Case) -> Story:
    return STORIES[case.point.rpartition(".")[0]]


def crash(world: CrashWorld, case: Case) -> None:
    """The process that passes the point dies there; another one, or the same started again, repairs what is left."""
    with world.named(f"{world.kind}: crash at {case}"):
        kept = _begin(world)
        target = world.follower if story_of(case).promotes else world.leader
        world.arm(target, f"{case.point}/crash@{case.at}")
        story_of(case).act(world)
        world.wait_crash(target)
        if world.kind == "behind":
            world.lose_tail(kept)
        world.recover()
        world.check()


def lose_answer(world: CrashWorld, case: Case, action: str = "unknown") -> None:
    """The operation ends without an answer, or (`error`) is refused; the process goes on and finds out."""
    with world.named(f"{world.kind}: {action} at {case}"):
        _begin(world)
        target = world.follower if story_of(case).promotes else world.leader
        struck = target.log.count("fail_point_strikes")
        world.arm(target, f"{case.point}/{action}@{case.at}")
        story_of(case).act(world)
        until(lambda: target.log.count("fail_point_strikes") > struck, "the point is passed")
        world.wait_served()
        world.check()


def _begin(world: CrashWorld) -> dict[int, str]:
    until(lambda: world.put(world.keys(4)), "a write is acknowledged")
    world.synced()
    return dict(world.kept)
