"""The mixed load: writers, readers and removers, each a client of its own that finds the leader by itself. What they were told goes into the ledger.

Bounded: each has one call under way, a pause after it, and the writers' blocks are removed again at about the pace at which they come.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import Any

from faults.checker import Ledger, Place
from faults.house import House
from kvcm.client import AsyncMetaClient, QueryType
from kvcm.client.errors import ClientError, RpcFailed, ServiceError
from kvcm.client.types import WriteLocation
from kvcm.common.errors import ErrorCode

WRITERS, READERS, REMOVERS = 3, 3, 1
BATCH = 16
_PAUSE_S = 0.04
_RECENT = 400
"""Batches that readers choose from and removers take the oldest of."""
_FIRST_KEY = 1 << 40
_WRITER_STRIDE = 1 << 32
_STALE_S = 60.0
_LOAD_TRIES = 10


class Load:
    """`async with Load(house, ledger, seed) as load:`"""

    def __init__(self, house: House, ledger: Ledger, seed: int) -> None:
        self._house = house
        self._ledger = ledger
        self._random = random.Random(seed)
        self._going = asyncio.Event()
        self._going.set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[AsyncMetaClient] = []
        self._batches: deque[list[int]] = deque()
        self._gone: deque[list[int]] = deque(maxlen=_RECENT)
        self.done = [0] * (WRITERS + READERS + REMOVERS)
        """Calls that went well, of each."""
        self.longest_s = 0.0
        """The longest that a call took, looking for the leader included, since the caller set it to 0."""
        self.errors: dict[str, int] = {}

    async def __aenter__(self) -> Load:
        config = self._house.client_config()
        for _ in self.done:
            self._clients.append(await AsyncMetaClient.connect(config))
        loops = [self._write] * WRITERS + [self._read] * READERS + [self._remove] * REMOVERS
        make = asyncio.get_running_loop().create_task
        self._tasks = [make(self._forever(number, step)) for number, step in enumerate(loops)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            await client.close()

    async def pause(self) -> None:
        """No call is under way when this returns. Raises TimeoutError."""
        self._going.clear()
        async with asyncio.timeout(_STALE_S):
            while self._busy:
                self._idle.clear()
                await self._idle.wait()

    def resume(self) -> None:
        self._going.set()

    async def progress(self, calls: int = 3, timeout_s: float = _STALE_S) -> None:
        """Until everybody has done so many calls more. Raises TimeoutError, or what ended a worker."""
        wanted = [done + calls for done in self.done]
        async with asyncio.timeout(timeout_s):
            while any(done < want for done, want in zip(self.done, wanted, strict=True)):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.02)

    async def _forever(self, number: int, step: Any) -> None:
        client = self._clients[number]
        turn = 0
        while True:
            await self._going.wait()
            self._busy += 1
            began = time.monotonic()
            try:
                await step(client, number, turn)
                self.done[number] += 1
            except ClientError as error:
                name = f"{type(error).__name__} {getattr(error, 'service_code', '') or getattr(error, 'grpc_status', '')}".strip()
                self.errors[name] = self.errors.get(name, 0) + 1
            finally:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self._busy -= 1
                self._idle.set()
            turn += 1
            await asyncio.sleep(_PAUSE_S * (0.5 + self._random.random()))

    # -- one step of each ----------------------------------------------------------------------------------------------------------------------

    async def _write(self, client: AsyncMetaClient, number: int, turn: int) -> None:
        # Now and then blocks that were removed come back, in new places.
        if turn % 4 == 3 and self._gone:
            keys = self._gone.popleft()
        else:
            first = _FIRST_KEY + number * _WRITER_STRIDE + turn * BATCH
            keys = list(range(first, first + BATCH))
        began = time.time()
        session = await client.start_write(keys, write_timeout_seconds=60)
        self._ledger.answered(self._node(client), began, time.time())
        places = given(self._ledger, keys, session)
        # Some writers say that part of their blocks was not written.
        flags = [turn % 8 != 7 or at % 4 != 0 for at in range(len(places))]
        written = [place for place, flag in zip(places, flags, strict=True) if flag]
        sent = time.time()
        self._ledger.finishing(written, sent)
        self._ledger.refused([place for place, flag in zip(places, flags, strict=True) if not flag])
        try:
            await client.finish_write(session.write_session_id, flags)
        except ClientError as error:
            if nothing_happened(error):
                self._ledger.refused(written)
            else:
                self._ledger.unknown(written)
            raise
        got = time.time()
        self._ledger.acknowledged(written, got)
        self._ledger.answered(self._node(client), sent, got)
        self._batches.append(keys)

    async def _read(self, client: AsyncMetaClient, number: int, turn: int) -> None:
        keys = self._random.choice(self._batches) if self._batches else []
        loaded = self._ledger.loaded
        if not keys or turn % 3 == 0:
            first = loaded.first + self._random.randrange(max(1, len(loaded) - BATCH))
            keys = list(range(first, first + min(BATCH, len(loaded))))
        kind = QueryType.BATCH_GET if turn % 2 else QueryType.PREFIX_MATCH
        sent = time.time()
        found = await client.match_location(kind, keys)
        got = time.time()
        self._ledger.answered(self._node(client), sent, got)
        uris = [location.uri("tp0") for location in found.locations]
        (self._ledger.read if turn % 2 else self._ledger.read_prefix)(keys, uris, sent, got)

    async def _remove(self, client: AsyncMetaClient, number: int, turn: int) -> None:
        if len(self._batches) < _RECENT // 2:
            return
        keys = self._batches.popleft() + (self._batches.popleft() if len(self._batches) > _RECENT else [])
        sent = time.time()
        places = self._ledger.removing(keys, sent)
        await client.remove_cache(keys)
        got = time.time()
        self._ledger.removed(places, got)
        self._ledger.answered(self._node(client), sent, got)
        self._gone.append(keys)

    def _node(self, client: AsyncMetaClient) -> str:
        return next(node.name for node in self._house.nodes if node.address == client.address)


def given(ledger: Ledger, keys: list[int], session: WriteLocation) -> list[Place]:
    """The places that a session handed out, in its order."""
    fresh = [keys[index] for index in session.block_mask.open_indexes(len(keys))]
    return [ledger.given(key, location.uri("tp0")) for key, location in zip(fresh, session.locations, strict=True)]


def nothing_happened(error: ClientError) -> bool:
    """A FinishWrite that ended so has finished nothing, and will not."""
    if error.unknown_outcome:
        return False
    if isinstance(error, RpcFailed):
        return not error.may_have_run
    # A store that failed may have the change all the same; a session that nobody knows is of a leader that is gone.
    return isinstance(error, ServiceError) and error.code is not ErrorCode.IO_ERROR


async def load_blocks(house: House, ledger: Ledger, count: int, batch: int = 2000) -> float:
    """Blocks `first` ... through StartWrite and FinishWrite in large batches. Returns seconds.

    On a machine without spare CPU a leader may lose its lease meanwhile: a session that went with it is begun anew.
    """
    began = time.monotonic()
    loaded = ledger.loaded
    async with await AsyncMetaClient.connect(house.client_config(call_ms=60_000)) as client:
        for first in range(loaded.first, loaded.first + count, batch):
            keys = list(range(first, min(first + batch, loaded.first + count)))
            for attempt in range(_LOAD_TRIES):
                try:
                    uris = await _load_batch(client, keys)
                except ClientError:
                    if attempt == _LOAD_TRIES - 1:
                        raise
                else:
                    if all(uris):  # else some are still on their way out, with the session that was lost
                        loaded.append(uris)
                        break
                await asyncio.sleep(1)
            else:
                raise TimeoutError(f"blocks {keys[0]} to {keys[-1]} could not be loaded")
    loaded.seal(ledger.breaches)
    return time.monotonic() - began


async def _load_batch(client: AsyncMetaClient, keys: list[int]) -> list[str]:
    session = await client.start_write(keys, write_timeout_seconds=600)
    await client.finish_write(session.write_session_id, [True] * len(session.locations))
    if len(session.locations) < len(keys):  # an attempt before this one was carried out after all
        found = await client.match_location(QueryType.BATCH_GET, keys)
        return [location.uri("tp0") for location in found.locations]
    return [location.uri("tp0") for location in session.locations]


async def verify(house: House, ledger: Ledger, keys: list[int], batch: int = 1000) -> None:
    """Read these blocks from the leader and compare. In batches that do not hold its loop for long: each is decided in one go, and its lease may be short."""
    async with await AsyncMetaClient.connect(house.client_config(call_ms=30_000)) as client:
        for at in range(0, len(keys), batch):
            part = keys[at : at + batch]
            sent = time.time()
            found = await client.match_location(QueryType.BATCH_GET, part)
            ledger.read(part, [location.uri("tp0") for location in found.locations], sent, time.time())
