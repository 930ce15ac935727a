"""Stories about elections as text files: a command a line, then `----`, then exactly what the nodes did.

    nodes a b lease=10s interval=100ms [ban=..] [backoff=..]
    run 3s            time goes by interval by interval; requests travel at once, unless a node is cut off or paused
    wait 3s           time goes by, nothing else happens
    tick a            | demote a | stop a | pause a | resume a
    cut a | join a    requests of this node get lost on their way, their answers too | travel again
    reach a           its request arrives at the coordinator            | answer a: ... and is answered | fail a: the node gives it up
    late              the oldest request that was given up arrives after all
    promoted a | promotion-fails a | demoted a          the callback ends
    lose-lock         the coordinator forgets who leads
    write a | land a  a mutation passes the check of node a | reaches the store
    show              who holds the lease, who may serve, roles and deadlines

Renewals are not printed. `python -m kvcm.coordination.testing_scenario FILE...` writes the output anew; review it as a diff. Invariants are checked all along.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kvcm.coordination.elector import ElectorSettings
from kvcm.coordination.testing_world import World

_DIVIDER = "----"
_UNITS = {"us": 1, "ms": 1000, "s": 1_000_000}


def play(text: str) -> str:
    """The story with the output that it really has. Raises ValueError for a command that is not known, AssertionError for a broken invariant."""
    stage = _Stage()
    lines, out = text.splitlines(), []
    at = 0
    while at < len(lines):
        line = lines[at]
        out.append(line)
        at += 1
        if line.strip() and not line.startswith("#"):
            stage.do(line)
        elif line.strip():
            continue
        if at < len(lines) and lines[at] == _DIVIDER:
            out += [_DIVIDER, *stage.told()]
            at += 1
            while at < len(lines) and lines[at].strip():
                at += 1
    left = stage.told()
    if left:
        out += [_DIVIDER, *left]
    return "\n".join(out).rstrip() + "\n"


class _Stage:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._world = World(self._lines.append)
        self._interval_us = 0
        self._cut: set[str] = set()

    def told(self) -> list[str]:
        """What happened since the last look. The campaigns of a node are counted where its first one was."""
        counts = Counter(self._lines)
        found = []
        for line in self._lines:
            if not line.endswith(": campaign"):
                found.append(line)
            elif line in counts:
                times = counts.pop(line)
                found.append(line if times == 1 else f"{line} ({times} times)")
        self._lines.clear()
        return found

    def do(self, line: str) -> None:
        word, *arguments = line.split()
        world = self._world
        for_node: dict[str, Callable[[str], None]] = {
            "tick": world.tick,
            "demote": world.demote,
            "stop": world.stop,
            "reach": world.reach,
            "answer": world.answer,
            "fail": world.fail,
            "write": world.write,
            "land": world.land,
            "cut": self._cut.add,
            "join": self._cut.discard,
            "pause": self._pause,
            "resume": self._resume,
            "promoted": lambda name: world.finish(name, True),
            "promotion-fails": lambda name: world.finish(name, False),
            "demoted": lambda name: world.finish(name, True),
        }
        if word in for_node:
            (name,) = arguments
            for_node[word](name)
        elif word == "nodes":
            self._nodes(arguments)
        elif word == "run":
            self._run(_us(arguments[0]))
        elif word == "wait":
            world.advance(_us(arguments[0]))
        elif word == "late":
            world.arrive_late()
        elif word == "lose-lock":
            world.lose_lock()
        elif word == "show":
            self._show()
        else:
            raise ValueError(f"no such command: {line}")

    def _nodes(self, arguments: list[str]) -> None:
        options = dict(item.split("=") for item in arguments if "=" in item)
        lease, interval = _us(options.pop("lease", "10s")) // 1000, _us(options.pop("interval", "100ms")) // 1000
        ban, backoff = _us(options.pop("ban", "0s")) // 1000, _us(options.pop("backoff", "5s")) // 1000
        if options:
            raise ValueError(f"no such option: {', '.join(options)}")
        self._interval_us = interval * 1000
        for name in arguments:
            if "=" not in name:
                self._world.add(ElectorSettings(name, lease, interval, campaign_delay_ms=ban, promote_backoff_ms=backoff))

    def _run(self, us: int) -> None:
        end = self._world.now + us
        while self._world.now < end:
            self._world.advance(min(self._interval_us, end - self._world.now))
            for name in self._world.nodes:
                self._world.tick(name)
                while self._world.nodes[name].request is not None and not self._world.nodes[name].paused:
                    if name in self._cut:
                        self._world.fail(name)
                        break
                    self._world.reach(name)
                    self._world.answer(name)

    def _pause(self, name: str) -> None:
        self._world.nodes[name].paused = True

    def _resume(self, name: str) -> None:
        self._world.nodes[name].paused = False

    def _show(self) -> None:
        world = self._world
        self._lines.append(f"at {_time(world.now)}: lease {world.holder() or 'free'}, serving {' '.join(world.may_serve()) or 'nobody'}")
        for name, node in world.nodes.items():
            elector = node.elector
            held = f", until {_time(elector.deadline_us)}" if elector.held else ""
            banned = f", banned until {_time(elector.banned_until_us)}" if elector.banned_until_us > world.now else ""
            running = f", {node.running} runs" if node.running else ""
            self._lines.append(f"{name}: {elector.role.value}, epoch {elector.epoch}{held}{running}{banned}")


def _us(text: str) -> int:
    for unit in ("us", "ms", "s"):
        if text.endswith(unit) and text.removesuffix(unit).replace(".", "", 1).isdigit():
            return round(float(text.removesuffix(unit)) * _UNITS[unit])
    raise ValueError(f"not a time: {text}")


def _time(us: int) -> str:
    return f"{us / 1e6:g}s"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(play(path.read_text(encoding="utf-8")), encoding="utf-8")
