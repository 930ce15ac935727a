"""Two-phase writes where such systems are known to break: half-done inserts, sessions that end twice or too early, late writers, blocks without an owner."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from kvcm.manager.testing import ManagerWorld, Metadata
from kvcm.meta.testing import Scheduler
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.scenario

KEYS = [1, 2, 3]
CHOICES = list(product((0, 1), repeat=5))
"""Which of two waiting steps goes next, five times over: every order that two short calls can have."""


def make_world(root: Path, metadata: Metadata = "local", scheduler: Scheduler | None = None) -> ManagerWorld:
    return ManagerWorld(root, ProtoLocationEncoder(), metadata=metadata, scheduler=scheduler)


async def all_gone(world: ManagerWorld) -> bool:
    """Does nothing at all remain, once everything that can end has ended?"""
    await world.rest()
    return not world.locations() and not world.files() and world.manager.group_usage("g").total == 0 and not len(world.manager.sessions)


def in_order(orders: Sequence[int]) -> object:
    steps = iter(orders)
    return lambda count: min(next(steps, 0), count - 1)


# -- start -------------------------------------------------------------------------------------------------------------------------------------
