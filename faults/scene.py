"""What a row plays in: a house that has loaded its blocks, a load that goes on, somebody who asks all the time, and the ledger of it all."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from faults.breaches import Kind
from faults.checker import Ledger, Loaded
from faults.house import House, Node, Plan, until
from faults.load import Load, load_blocks, verify
from faults.prober import Prober

_WARM_S = 180.0
_SETTLED_S = 1.0
_SAMPLE = 20_000
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds. `refused_s`: the longest time in which no node answered. `served_s`: from the fault to the first answer of the next leader. `waited_s`: the
    longest call of the load, its search for the leader included. `epoch`: of the next leader. `tail`: acknowledged and perhaps not in the store
    (write-behind)."""

    refused_s: float
    served_s: float
    waited_s: float
    epoch: int
    tail: int = 0
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Scene:
    house: House
    ledger: Ledger
    load: Load
    prober: Prober
    random: random.Random
    say: Say
    loaded_s: float
    held_ready: bool = field(default=False)

    @property
    def plan(self) -> Plan:
        return self.house.plan

    async def leader(self) -> Node:
        """Who answers now."""
        return self.house.node((await self.prober.leader(time.time())).node)

    async def warm_follower(self, leader: Node, all_of_them: bool = False) -> Node:
        """Waits until a follower (or every one) has a complete copy; one of those. Raises TimeoutError."""
        found: list[Node] = []

        def look() -> bool:
            found[:] = [node for node in self.house.others(leader) if node.up and self.house.is_warm(node)]
            return len(found) == len(self.house.nodes) - 1 if all_of_them else bool(found)

        await until(look, "a follower has a complete copy", _WARM_S)
        return self.random.choice(found)

    async def ready(self, all_warm: bool = False) -> Node:
        """Everybody works, a follower is warm, nothing of the last round is left; the leader."""
        await self.load.progress()
        leader = await self.leader()
        await self.warm_follower(leader, all_warm)
        self.prober.forget()
        self.load.longest_s = 0.0
        return leader

    async def sync(self, leader: Node) -> None:
        """Write-behind: make sure that everything acknowledged so far is in Redis, then let the load go on for a moment so that there is a tail again."""
        if self.plan.mode == "behind":
            await self.load.pause()
            moment = time.time()
            await until(lambda: self.house.behind(leader) == 0, "what waits to be written behind is in Redis")
            self.ledger.synced(moment)
            self.load.resume()
            await self.load.progress(2)

    async def settle(self, since: float, served: float, tail: int = 0, notes: Sequence[str] = ()) -> Round:
        """After the next leader has answered: let the load go on, look at what was promised, compare with the terms."""
        await self.load.progress()
        await asyncio.sleep(_SETTLED_S)
        waited = self.load.longest_s
        gap = self.prober.gap(since, served + _SETTLED_S)
        await self.look()
        terms = self.house.terms()
        self.ledger.settle(terms)
        return Round(gap, served - since, waited, terms[-1].epoch if terms else 0, tail, tuple(notes))

    async def look(self, everything: bool = False) -> None:
        """Reads back what was promised: the whole of it, or a part drawn anew each time."""
        promised, loaded = self.ledger.promised(), self.ledger.loaded
        denied = self.ledger.refused_keys()
        keys = range(loaded.first, loaded.first + len(loaded))
        if everything:
            await verify(self.house, self.ledger, [*keys, *promised, *denied])
            return
        newest = promised[-_SAMPLE // 4 :]
        drawn = self.random.sample(keys, min(_SAMPLE, len(keys)))
        await verify(self.house, self.ledger, [*newest, *drawn, *denied[-_SAMPLE // 4 :]])

    def breach(self, kind: Kind, what: str) -> None:
        self.ledger.breaches.add(kind, what)


@asynccontextmanager
async def opened(plan: Plan, blocks: int, seed: int, say: Say) -> AsyncIterator[Scene]:
    house = House(plan)
    entering = asyncio.ensure_future(asyncio.to_thread(house.__enter__))
    try:
        await asyncio.shield(entering)
        ledger = Ledger(Loaded(1), behind=plan.mode == "behind")
        say(f"{plan.nodes} managers, leases and registry in {plan.stores}, metadata written {plan.mode}, lease {plan.lease_ms} ms; loading {blocks} blocks")
        took = await load_blocks(house, ledger, blocks)
        house.instances = 1
        say(f"loaded in {took:.1f} s")
        async with Prober(house, ledger, seed) as prober, Load(house, ledger, seed + 1) as load:
            yield Scene(house, ledger, load, prober, random.Random(seed + 2), say, took)
    finally:
        await asyncio.wait({entering})  # whoever is cancelled meanwhile takes all of it down, not a part
        await asyncio.to_thread(house.__exit__, None, None, None)
