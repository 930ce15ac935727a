"""Plays rows in houses and collects what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from faults.breaches import Breaches, Kind
from faults.house import Plan
from faults.report import Played
from faults.rows import Row
from faults.scene import Say, opened
from kvcm.common.errors import KvcmError


async def play(plan: Plan, blocks: int, rows: Sequence[tuple[Row, int]], seed: int, say: Say, breaches: Breaches, logs: Path | None = None) -> list[Played]:
    """These rows, each so many rounds, one after the other in one house. All breaches are added to `breaches`; times are not judged. A row ends
    early when something hangs, and the log of every node is kept then (`House.rescue` says where). `logs`: a folder to which they are copied in any case."""
    found = []
    async with opened(plan, blocks, seed, say) as scene:
        for row, rounds in rows:
            played = Played(row, plan, blocks)
            counts, broken = scene.ledger.counts.copy(), scene.ledger.breaches.counts.copy()
            began, told = time.monotonic(), len(scene.ledger.breaches.first)
            for number in range(rounds):
                try:
                    figures = await row.play(scene, number)
                except (TimeoutError, KvcmError) as error:
                    # The house is in no state for more rounds; what was found until here is still shown.
                    scene.breach(Kind.HUNG, f"{row.name} round {number}: {error or type(error).__name__}")
                    say(f"    the nodes' logs: {', '.join(await scene.house.rescue())}")
                    break
                else:
                    played.rounds.append(figures)
                    times = f"served after {figures.served_s:.2f} s, nobody answered for {figures.refused_s:.2f} s"
                    say(f"{row.name} {number + 1}/{rounds}: {times}, epoch {figures.epoch}")
                    for note in figures.notes:
                        say(f"    {note}")
                for breach in scene.ledger.breaches.first[told:]:
                    say(f"    BREACH {breach}")
                told = len(scene.ledger.breaches.first)
            try:
                await scene.look(everything=True)
            except (TimeoutError, KvcmError) as error:
                scene.breach(Kind.HUNG, f"after {row.name} the blocks could not be read: {error or type(error).__name__}")
            scene.ledger.settle(scene.house.terms())
            played.counts = scene.ledger.counts - counts
            played.breaches = scene.ledger.breaches.counts - broken
            say(f"{row.name}: {rounds} rounds in {time.monotonic() - began:.0f} s; errors that clients were told: {scene.load.errors or 'none'}")
            found.append(played)
            if logs is not None:
                scene.house.copy_logs(logs)
        for breach in scene.ledger.breaches.first:
            breaches.first.append(breach)
        breaches.counts += scene.ledger.breaches.counts
    return found
