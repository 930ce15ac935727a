"""What happens when this node wins and loses leadership (wire contract 1.5; behaviour 16.3).

    follow:  keep copies of what the leader has
    promote: registry recovers (its fence rises) -> startup configuration -> manager recovers, from the copies -> background work -> requests open
    demote:  requests close -> running ones end (bounded) -> background work stops -> manager and registry forget -> follow

The runner calls the two in turn, never at the same time. A promotion that fails or is cancelled half-way is followed by a demotion, so `demote` copes
with whatever has not begun. A failed promotion keeps requests closed and is repeated after a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcm.common.errors import KvcmError
from kvcm.config.model import InstanceGroup
from kvcm.config.registry import Registry
from kvcm.coordination.runner import LeaderRunner
from kvcm.data_storage.model import Storage
from kvcm.manager.cache_manager import CacheManager
from kvcm.manager.follower import Follower
from kvcm.metrics import gc_tuning
from kvcm.service.in_flight import InFlight

DRAIN_S = 10.0
_STEP_S = 8.0
_log = logging.getLogger("kvcm.service.lifecycle")


@dataclass(slots=True)
class Term:
    """The leadership that this process works under: the fence of every store write (`kvcm.manager.ports.Leadership`)."""

    epoch: int = 0
    open: bool = False
    """Recovery is complete: leader-only requests may be answered while the lease holds."""
    ending: bool = False
    """From the beginning of the demotion: nobody begins or goes on with what takes long."""


class Background(Protocol):
    """Work that goes on only while this node leads."""

    def start(self) -> None: ...

    async def stop(self) -> None:
        """Also when it was never started."""
        ...


class LeaderGate:
    """`kvcm.service.rpc.LeaderCheck`: the term is open, the role is right and the lease has not run out (design D6)."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._runner: LeaderRunner | None = None

    def follow(self, runner: LeaderRunner) -> None:
        self._runner = runner

    def may_serve(self, now_us: int = 0) -> bool:
        # 0: the caller has not read the clock, the runner does.
        runner = self._runner
        return self._term.open and runner is not None and (runner.leads_at(now_us) if now_us else runner.is_leader())

    def lease_holds(self, now_us: int) -> bool:
        runner = self._runner
        return runner is not None and now_us < runner.deadline_us


class Lifecycle:
    """`startup`: what is added at the first promotion if it does not exist. `tune_gc`: the process is ours alone, freeze what recovery loaded."""

    def __init__(
        self,
        term: Term,
        registry: Registry,
        manager: CacheManager,
        background: Sequence[Background],
        in_flight: InFlight,
        startup: tuple[Storage | None, InstanceGroup | None],
        tune_gc: bool,
        follower: Follower | None = None,
    ) -> None:
        self._term = term
        self._registry = registry
        self._manager = manager
        self._background = background
        self._in_flight = in_flight
        self._startup = startup
        self._tune_gc = tune_gc
        self._follower = follower

    async def promote(self, epoch: int) -> None:
        """Make everything ready for this term. Raises what went wrong; then `demote` follows."""
        self._term.epoch, self._term.ending = epoch, False
        await self._registry.recover(epoch)
        await self._registry.apply_startup(*self._startup)
        if self._follower is None:
            await self._manager.recover()
        else:
            await self._manager.recover(await self._follower.hand_over())
        if self._tune_gc:
            gc_tuning.freeze()
        for work in self._background:
            work.start()
        self._term.open = True
        _log.info("serving epoch=%d instances=%d", epoch, len(self._manager.shards()))

    async def demote(self, epoch: int) -> None:
        """Close, drain, forget. Every step is tried, whatever happens to the others."""
        self._term.open, self._term.ending = False, True
        began = asyncio.get_running_loop().time()
        if not await self._in_flight.drained(DRAIN_S):
            _log.warning("drain_incomplete epoch=%d calls=%d", epoch, self._in_flight.count)
        for work in self._background:
            await self._step("stopping background work", work.stop)
        await self._step("cleaning up the manager", self._manager.cleanup)
        await self._step("cleaning up the registry", self._registry.cleanup)
        if self._tune_gc:
            gc_tuning.thaw()
        if self._follower is not None:
            self._follower.start()
        _log.info("closed epoch=%d seconds=%.2f", epoch, asyncio.get_running_loop().time() - began)

    async def _step(self, what: str, action: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_STEP_S):
                await action()
        except TimeoutError:
            _log.error("%s took longer than %d s and was cut off", what, _STEP_S)
        except KvcmError as error:
            _log.error("%s failed: %s", what, error.message)
        except Exception:
            _log.exception("%s failed", what)
