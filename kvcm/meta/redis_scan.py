"""Which blocks are in Redis: one walk through all keys of a database for every instance of this process that wants to know at the same time.

Redis has no index by name, so whoever looks for the blocks of one instance walks through the blocks of all. A walk yields every key that was there from its
beginning to its end. So an instance may join one that has not begun yet, never one that is under way: what an old leader stored in between, before the fence
was raised, would be missed. Instances that open together join while they raise their fences, and the walk begins when none of them is left to wait for.

Danger: an instance that never comes to raise its fence must not hold up the others, so the waiting is bounded; it then walks by itself.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

from kvcm.common.errors import StorageError
from kvcm.common.redis.connection import ConnectionLost, RedisConnection, connect, error_word, glob_escaped, pack, refused
from kvcm.common.redis.target import RedisTarget, place_of

_COUNT = 2048
_TIMEOUT_S = 30.0
_GATHER_S = 2.0
_BLOCKS = b":cache_"
_ALL = "kvcache:instance_*:cache_*"


class _Opening:
    """How many instances of one database are about to join."""

    def __init__(self) -> None:
        self.count = 0
        self.none = asyncio.Event()
        self.none.set()


class KeyScan:
    """One walk. `prefix`: of the names of an instance's blocks."""

    def __init__(self, target: RedisTarget, opening: _Opening) -> None:
        self._target = target
        self._opening = opening
        self._found: dict[bytes, array[int]] = {}
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0
        self._given_up = False
        self.begun = False

    def join(self, prefix: bytes) -> None:
        assert not self.begun, "a walk that has begun may have passed by what matters"
        self._found.setdefault(prefix, array("q"))

    async def keys(self, prefix: bytes) -> array[int]:
        """Of one that has joined; not to be changed. A key that exists all the while is there, possibly twice. Raises StorageError."""
        if self._task is None or self._given_up:
            self._given_up = False
            self._task = asyncio.get_running_loop().create_task(self._walk())
        task = self._task
        self._waiting += 1
        try:
            # Whoever asked first may go away; the others still wait.
            await asyncio.wait({task})
        finally:
            self._waiting -= 1
            if not self._waiting and not task.done():
                # Nobody new may join what was given up, or it would fail everybody from now on. Whoever has joined already begins it anew.
                task.cancel()
                self.begun = self._given_up = True
        if task.cancelled():
            raise StorageError("looking for the blocks in Redis was given up; repeat the call")
        task.result()
        return self._found[prefix]

    async def _walk(self) -> None:
        try:
            async with asyncio.timeout(_GATHER_S):
                await self._opening.none.wait()
        except TimeoutError:
            pass
        self.begun = True
        connection = await connect(self._target, "kvcm-scan")
        try:
            await self._walk_over(connection)
        except ConnectionLost as error:
            raise StorageError(f"the metadata in Redis could not be read: {error.message}") from error
        finally:
            connection.close()

    async def _walk_over(self, connection: RedisConnection) -> None:
        alone = next(iter(self._found)) if len(self._found) == 1 else None
        pattern = f"{glob_escaped(alone.decode())}*" if alone is not None else _ALL
        cursor = b"0"
        while True:
            (reply,) = await connection.send(pack("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT), 1, _TIMEOUT_S)
            if error_word(reply):
                raise refused(reply, "to show blocks")
            cursor, names = reply
            if alone is not None:
                _add(self._found[alone], [name[len(alone) :] for name in names])
            else:
                self._sort(names)
            if cursor == b"0":
                return
            await asyncio.sleep(0)

    def _sort(self, names: Sequence[bytes]) -> None:
        """By instance. Its id may hold the separator too; a block's key does not."""
        found = self._found
        by_prefix: dict[bytes, list[bytes]] = {}
        for name in names:
            at = name.rfind(_BLOCKS) + len(_BLOCKS)
            by_prefix.setdefault(name[:at], []).append(name[at:])
        for prefix, texts in by_prefix.items():
            keys = found.get(prefix)
            if keys is not None:
                _add(keys, texts)


def _add(keys: array[int], texts: Sequence[bytes]) -> None:
    """Of names that only begin like those of blocks nothing is added."""
    try:
        numbers = array("q", map(int, texts))
        if b" ".join(texts) == (b"%d " * len(texts) % tuple(numbers))[:-1]:
            keys.extend(numbers)
            return
    except (ValueError, OverflowError):
        pass
    for text in texts:
        try:
            number = int(text)
            if b"%d" % number == text:
                keys.append(number)
        except (ValueError, OverflowError):
            continue


def _login(target: RedisTarget) -> tuple[object, ...]:
    """One user may not be allowed what another one is."""
    return place_of(target), target.user, target.password, target.username_file, target.password_file


class KeyScans:
    """The walks of one process."""

    def __init__(self) -> None:
        self._opening: dict[tuple[object, ...], _Opening] = {}
        self._next: dict[tuple[object, ...], KeyScan] = {}

    def expect(self, target: RedisTarget) -> None:
        """An instance there is about to join. `arrived` must follow, whatever becomes of it."""
        opening = self._opening.setdefault(_login(target), _Opening())
        opening.count += 1
        opening.none.clear()

    def arrived(self, target: RedisTarget) -> None:
        opening = self._opening[_login(target)]
        opening.count -= 1
        if not opening.count:
            opening.none.set()

    def join(self, target: RedisTarget, prefix: bytes) -> KeyScan:
        """The next walk, which has not begun."""
        place = _login(target)
        scan = self._next.get(place)
        if scan is None or scan.begun:
            scan = self._next[place] = KeyScan(target, self._opening.setdefault(place, _Opening()))
        scan.join(prefix)
        return scan
