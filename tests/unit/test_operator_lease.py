"""One operator at a time: who may take the Lease, who keeps it, who must stop."""

from __future__ import annotations

import asyncio

import pytest

from kvcm.common.clock import FakeClock
from kvcm.common.errors import NotReady
from kvcm_operator.lease import Lease
from kvcm_operator.testing import FakeKube
from kvcm_operator.world import Ref

pytestmark = pytest.mark.unit

REF = Ref("Lease", "default", "kvcm-operator")


class Bed:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.kube = FakeKube(self.clock)
        self.sleeps = 0

    def lease(self, identity: str) -> Lease:
        return Lease(self.kube, self.clock, REF, identity, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance_us(int(seconds * 1e6))
        self.sleeps += 1
        await asyncio.sleep(0)
        if self.sleeps > 1000:
            raise AssertionError("it sleeps for ever")

    def holder(self) -> str:
        return str(self.kube.body(REF)["spec"]["holderIdentity"])


def test_the_first_takes_it_and_another_waits_until_it_has_not_moved_for_the_whole_time() -> None:
    async def story() -> None:
        bed = Bed()
        await bed.lease("a").acquire()
        assert bed.holder() == "a"
        await bed.lease("b").acquire()
        assert bed.holder() == "b"
        assert bed.sleeps * 2.0 >= 15.0
        assert bed.kube.body(REF)["spec"]["leaseTransitions"] == 1

    asyncio.run(story())


def test_a_holder_that_renews_is_not_displaced_and_one_that_releases_is_followed_at_once() -> None:
    async def story() -> None:
        bed = Bed()
        first = bed.lease("a")
        await first.acquire()
        keeping = asyncio.create_task(first.keep())
        waiting = asyncio.create_task(bed.lease("b").acquire())
        for _ in range(100):
            await asyncio.sleep(0)
        assert bed.holder() == "a"
        assert not keeping.done()
        keeping.cancel()
        await first.release()
        await asyncio.wait_for(waiting, 5)
        assert bed.holder() == "b"

    asyncio.run(story())


def test_a_holder_that_cannot_renew_stops_before_another_may_start() -> None:
    async def story() -> None:
        bed = Bed()
        lease = bed.lease("a")
        await lease.acquire()
        start = bed.clock.monotonic_us()

        async def away(_what: str) -> None:
            raise NotReady("the API server is away")

        bed.kube.on_call = away
        await lease.keep()
        assert 10.0 <= (bed.clock.monotonic_us() - start) / 1e6 < 15.0

    asyncio.run(story())


def test_a_holder_that_was_displaced_stops() -> None:
    async def story() -> None:
        bed = Bed()
        lease = bed.lease("a")
        await lease.acquire()
        bed.kube.edit(REF, lambda body: body["spec"].update(holderIdentity="b", renewTime="later"))
        await lease.keep()
        assert bed.sleeps == 1
        await lease.release()
        assert bed.holder() == "b"

    asyncio.run(story())
