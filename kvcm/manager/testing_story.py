"""Random stories for the cache manager: calls that overlap at every suspension point, and a checker that remembers what every client was told.

A story is a list of numbers (drawn by hypothesis, so it shrinks). They decide which call begins, which waiting call goes on, how far the clock moves, what
fails. `Checker` looks at every shard after every step; `Story.end` repairs what is broken, lets all time pass, and asks whether everything that must
be gone is gone and everything that must be there is there. Each violation names its invariant.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any

from kvcm.common.errors import InstanceNotExist, KvcmError
from kvcm.config.model import QueryType
from kvcm.data_storage.model import StorageType
from kvcm.data_storage.sentinel import SENTINEL_NAME
from kvcm.manager.by_backend import BackendQuery, BackendSelector
from kvcm.manager.errors import SessionUnknown
from kvcm.manager.ports import WireCodec
from kvcm.manager.shard import InstanceShard
from kvcm.manager.testing import ManagerWorld, Metadata, StorageKind, Write, holds_bytes, path_of, write_bytes
from kvcm.manager.testing_checker import Checker, demand
from kvcm.manager.trimmer import TrimRange
from kvcm.meta.location import Status
from kvcm.meta.testing import Fault, Scheduler

INSTANCES = ("i", "j")
KEYS = (1, 2, 3, 4, -5)
STEP_LIMIT = 20_000
_KINDS = (StorageType.NFS, StorageType.DUMMY, StorageType.HF3FS)


def numbers(seed: int, length: int) -> list[int]:
    """Choices for a story; a shorter one is the beginning of a longer one."""
    random = Random(seed)
    return [random.randrange(1 << 16) for _ in range(length)]


class Story:
    """`choices` decides everything; `ops` are the names of the methods that may begin, repeated for weight."""

    def __init__(self, world: ManagerWorld, scheduler: Scheduler, choices: Sequence[int], ops: Sequence[str], *, delay_us: int, one_copy: bool = True) -> None:
        self.world = world
        self.scheduler = scheduler
        self.checker = Checker(world, delay_us, one_copy=one_copy)
        self._choices = list(reversed(choices))
        self._ops = ops
        self._tasks: set[asyncio.Task[None]] = set()
        self.writes: list[Write] = []
        self.finished: Counter[str] = Counter()
        self.finishing: Counter[str] = Counter()
        self.excused: set[str] = set()
        """Sessions that may be unknown before their deadline: the instance was removed, or the process crashed."""
        self.garbage: set[str] = set()
        """Places that a client wrote to after its location had gone: nobody's bytes, and known to stay."""
        self.attempted: set[str] = set()
        self.removals: Counter[str] = Counter()
        self.cut_removals: set[str] = set()
        """Instances whose removal was under way at a crash: what was not DELETING by then is kept until the id is registered again."""
        self.crashed = False

    def pick(self, count: int) -> int:
        return self._choices.pop() % count if self._choices else 0

    def subset(self, items: Sequence[Any], most: int) -> list[Any]:
        return [items[self.pick(len(items))] for _ in range(1 + self.pick(most))]

    # -- running -------------------------------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        steps = 0
        while self._choices and steps < STEP_LIMIT:
            steps += 1
            waiting = self.scheduler.pending()
            if waiting and self.pick(3):
                await self.scheduler.release(self.pick(len(waiting)))
            else:
                await getattr(self, "op_" + self._ops[self.pick(len(self._ops))])()
                await self.scheduler.settle()
            self._collect()
            self.checker.look()

    async def end(self) -> None:
        """Repair, finish what waits, let all time pass: what must be gone is gone, what must be there is there."""
        self._choices.clear()
        await self.op_mount()
        for backend in self.world.stores.values():
            backend.faults.clear()
            backend.failing_keys.clear()
            backend.failing_reads = backend.failing_syncs = 0
        await self._drain()
        demand("every call ends", not self._tasks, "a call waits for something that never comes")
        for _ in range(6):
            self.world.clock.advance_us(3_600_000_000)
            self.spawn(self._tick())
            await self._drain()
        self.checker.look()
        self.checker.bytes()
        left = [(identity, location.status.name) for identity, location in self.checker.now().items() if location.status is not Status.SERVING]
        demand("I-EX-7", not left, f"after everything has healed there are still {left}")
        manager = self.world.manager
        demand("I-WL-4", len(manager.sessions) == 0, "sessions are left")
        demand("I-WL-3", not manager.sessions.is_holding(), "locations are held without a session")
        demand("I-EX-7", manager.deleter.pending == 0, "deletions are queued for locations that are gone")
        removed = [shard.instance_id for shard in self.world.holders() if shard.closed]
        demand("I-CM-11", not removed, f"removed instances are still held: {removed}")
        owned = {path_of(uri) for _, _, location in self.world.locations() for uri in self.world.uris_of(location)}
        strays = self.world.files() - owned - {path_of(uri) for uri in self.garbage}
        strays = {path for path in strays if not any(f"/{instance}/" in str(path) for instance in self.cut_removals)}
        if self.crashed:  # slots that nobody got are forgotten with the process; a file of nothing else may stay
            strays = {path for path in strays if any(path.read_bytes())}
        demand("I-CM-5", not strays, f"files that nobody owns: {sorted(str(path) for path in strays)}")

    async def _drain(self) -> None:
        await self.scheduler.settle()
        while self.scheduler.pending():
            await self.scheduler.release()
            self.checker.look()
        self._collect()

    async def _tick(self) -> None:
        await self.world.manager.sweep()
        await self.world.manager.run_due_deletions()

    def spawn(self, call: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.ensure_future(call))

    def _collect(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            if not task.cancelled():
                task.result()

    async def _refusable(self, call: Coroutine[Any, Any, object]) -> None:
        """A call that may be refused; anything but a KvcmError fails the story."""
        try:
            await call
        except KvcmError:
            return

    # -- clients -------------------------------------------------------------------------------------------------------------------------------

    async def op_start(self) -> None:
        instance = INSTANCES[self.pick(len(INSTANCES))]
        self.spawn(self._start(instance, self.subset(KEYS, 4), (30, 5, 0, 30)[self.pick(4)], bool(self.pick(2))))

    async def _start(self, instance: str, keys: list[int], timeout_s: int, write_now: bool) -> None:
        try:
            asked = self.world.manager.shard(instance)
            write = await self.world.start(instance, keys, timeout_s=timeout_s)
        except KvcmError:
            return
        is_open = self.world.manager.sessions.get(write.session_id) is not None
        demand("I-CM-11", not (asked.closed and is_open), f"a write that began before {instance} was removed goes on after it")
        there = write.mask.expand(len(keys))
        assert there is not None
        demand("I-CM-3", len(write.uris) == there.count(False), "as many locations as open keys")
        hexes = [format(key & 0xFFFFFFFFFFFFFFFF, "x") for key in write.keys]
        names = [path_of(next(iter(places.values()))).name.partition("_")[0] for places in write.uris]
        demand("I-CM-3", self.world.packed or hexes == names, f"locations {names} for keys {hexes}")
        prefix = all(there[: there.count(True)])
        demand("I-CM-4", (write.mask.values is None) == prefix, f"{write.mask} for {there}")
        shard = self.world.manager._instances.holders().get(instance)
        for key, places in zip(write.keys, write.uris, strict=True):
            demand("I-CM-2", all(f"/{instance}/" in uri for uri in places.values()), f"{instance} was given {places}")
            mine = [loc for loc in shard.index.get(key) if self.world.uris_of(loc) == list(places.values())] if shard is not None else []
            demand("I-CM-3", all(loc.status in (Status.WRITING, Status.DELETING) for loc in mine), "a new location is WRITING")
        self.writes.append(write)
        if write_now:
            self._write_bytes(write)

    async def op_write(self) -> None:
        if self.writes:
            self._write_bytes(self.writes[self.pick(len(self.writes))])

    def _write_bytes(self, write: Write) -> None:
        owned = {uri for _, _, location in self.world.locations() for uri in self.world.uris_of(location)}
        if write.session_id in self.excused | self.attempted or self.world.clock.monotonic_us() >= write.deadline_us:
            return  # a client writes only while its session is open, as far as it can know
        for uri in write.all_uris():
            if uri not in owned:
                demand("a writer keeps its place", write.session_id in self.excused, f"{uri} was taken from a writer whose session is open")
            write_bytes(uri)

    async def op_finish(self) -> None:
        if self.writes:
            write = self.writes[self.pick(len(self.writes))]
            self.spawn(self._finish(write, [bool(self.pick(4)) for _ in write.keys]))

    async def _finish(self, write: Write, success: list[bool]) -> None:
        session = write.session_id
        self._write_bytes(write)
        self.attempted.add(session)
        wanted = {uri for places, good in zip(write.uris, success, strict=True) if good for uri in places.values()}
        written = all(holds_bytes(uri) for uri in wanted)
        if not written:
            success = [False] * len(success)  # an honest client
            wanted = set()
        self.checker.succeeded |= wanted
        expected = not self.finished[session] and not self.finishing[session] and session not in self.excused
        early = self.world.clock.monotonic_us() < write.deadline_us
        self.finishing[session] += 1
        try:
            await self.world.finish(write, success)
        except InstanceNotExist:
            return
        except SessionUnknown:
            demand("I-WL-2", not (expected and early), f"session {session} ended before its deadline")
            return
        except KvcmError as error:
            if error.retryable or session in self.excused:
                self.finishing[session] -= 1  # it may be repeated
                return
            self.finished[session] += 1  # WriteLost: the session has ended
            demand("I-CM-7", self.finished[session] == 1, f"session {session} was finished twice")
            return
        self.finished[session] += 1
        demand("I-CM-7", self.finished[session] == 1, f"session {session} was finished twice")
        mine = set(write.all_uris())
        for identity, location in self.checker.now().items():
            if mine.issuperset(self.world.uris_of(location)) and mine:
                demand("I-MS-4b", location.status is not Status.WRITING, f"{identity} is WRITING although its finish was answered with OK")

    async def op_read(self) -> None:
        instance = INSTANCES[self.pick(len(INSTANCES))]
        kind = (QueryType.PREFIX_MATCH, QueryType.BATCH_GET, QueryType.REVERSE_ROLL_SW_MATCH)[self.pick(3)]
        self.spawn(self._refusable(self._read(instance, self.subset(KEYS, 4), kind)))

    async def _read(self, instance: str, keys: list[int], kind: QueryType) -> None:
        shard = self.world.manager.shard(instance)
        window = 1 + self.pick(len(keys)) if kind is QueryType.REVERSE_ROLL_SW_MATCH else 0
        found = await self.world.read(instance, keys, kind, window=window)
        hits = [bool(places) and all(places.values()) for places in found]
        if kind is QueryType.PREFIX_MATCH:
            demand("I-CM-9", len(found) <= len(keys), "more results than keys")
        else:
            demand("I-CM-9", len(found) == len(keys), f"{len(found)} results for {len(keys)} keys")
        if window:
            run = [index for index, hit in enumerate(hits) if hit]
            demand("I-MS-3", not run or (len(run) == window and run[-1] - run[0] == window - 1), f"window {window} gave {hits}")
        for key, places, hit in zip(keys, found, hits, strict=False):
            if hit:
                self._check_shown(shard, key, places)
        if kind is QueryType.PREFIX_MATCH and not self.world.probing and len(found) < len(keys):
            stop = shard.index.get(keys[len(found)])
            demand("I-MS-1", all(loc.status is not Status.SERVING for loc in stop), "the prefix ended before a readable block")

    async def op_read_by_backend(self) -> None:
        instance = INSTANCES[self.pick(len(INSTANCES))]
        kinds = [*(storage.type for storage in self.world.storages.list()), _KINDS[self.pick(len(_KINDS))]]
        self.spawn(self._refusable(self._read_by_backend(instance, self.subset(KEYS, 4), kinds)))

    async def _read_by_backend(self, instance: str, keys: list[int], kinds: list[StorageType]) -> None:
        shard = self.world.manager.shard(instance)
        query = BackendQuery(keys, [BackendSelector(kind) for kind in kinds])
        found = await self.world.manager.locate_by_backend(shard, query, self.world.clock.wall_us())
        demand("I-CM-9", len(found) == len(keys), f"{len(found)} entries for {len(keys)} keys")
        for key, entry in zip(keys, found, strict=True):
            shown = [self.world.codec.decode(wire) for wire in entry]
            demand("I-CM-9", len(shown) <= len(kinds), f"{len(shown)} locations for {len(kinds)} selectors")
            for kind, specs in shown:
                demand("I-CM-9", kind in kinds, f"a location of kind {kind}, which was not asked for")
                self._check_shown(shard, key, dict(specs))

    def _check_shown(self, shard: InstanceShard, key: int, places: dict[str, str]) -> None:
        serving = {uri for loc in shard.index.get(key) if loc.status is Status.SERVING for uri in self.world.uris_of(loc)}
        demand("I-CM-8", serving.issuperset(places.values()), f"{places} was returned for key {key}, which serves {serving}")
        demand("I-CM-2", all(f"/{shard.instance_id}/" in uri for uri in places.values()), f"{shard.instance_id} was shown {places}")

    async def op_remove(self) -> None:
        instance, keys = INSTANCES[self.pick(len(INSTANCES))], self.subset(KEYS, 3)
        self.spawn(self._refusable(self._with_shard(instance, lambda shard: self.world.manager.remove_cache(shard, keys))))

    async def op_trim(self) -> None:
        instance = INSTANCES[self.pick(len(INSTANCES))]
        now = self.world.clock.wall_us() // 1_000_000
        wanted = TrimRange(now - self.pick(20), now) if self.pick(2) else None
        self.spawn(self._refusable(self._with_shard(instance, lambda shard: self.world.manager.trim(shard, wanted))))

    async def _with_shard(self, instance: str, call: Callable[[Any], Coroutine[Any, Any, int]]) -> None:
        await call(self.world.manager.shard(instance))

    # -- administrators ------------------------------------------------------------------------------------------------------------------------

    async def op_remove_instance(self) -> None:
        instance = INSTANCES[self.pick(len(INSTANCES))]
        self.spawn(self._refusable(self._remove_instance(instance)))

    async def _remove_instance(self, instance: str) -> None:
        self._excuse(instance)
        self.removals[instance] += 1
        try:
            await self.world.manager.remove_instance(instance)
        finally:
            self.removals[instance] -= 1
        self._excuse(instance)
        if self.world.registry.get_instance(instance) is None:
            try:
                self.world.manager.shard(instance)
            except InstanceNotExist:
                return
            demand("I-CM-11", False, f"{instance} is served after its removal")

    def _excuse(self, instance: str) -> None:
        self.excused.update(write.session_id for write in self.writes if write.instance_id == instance)

    async def op_register(self) -> None:
        instance = INSTANCES[self.pick(len(INSTANCES))]
        self.spawn(self._refusable(self._register(instance)))

    async def _register(self, instance: str) -> None:
        before = {location for name, _, location in self.world.locations() if name == instance}
        created = await self.world.manager.register(self.world.instance(instance, "g"))
        shard = self.world.manager._instances.holders().get(instance)
        if created and shard is not None and not self.crashed:
            kept = [loc for page in shard.index.pages() for key in page for loc in shard.index.get(key) if loc in before and loc.status is Status.SERVING]
            demand("I-CM-11", not kept, f"a new registration of {instance} serves {len(kept)} old blocks")

    async def op_sweep(self) -> None:
        self.spawn(self._refusable(self.world.manager.sweep()))

    async def op_delete(self) -> None:
        self.spawn(self._refusable(self._delete()))

    async def _delete(self) -> None:
        await self.world.manager.run_due_deletions()

    # -- the world -----------------------------------------------------------------------------------------------------------------------------

    async def op_advance(self) -> None:
        self.world.clock.advance_us((100_000, 1_000_000, 2_500_000, 6_000_000, 40_000_000)[self.pick(5)])

    async def op_unmount(self) -> None:
        for storage in self.world.storages.list():
            sentinel = self.world.sentinel_of(storage.name)
            if sentinel.exists():
                sentinel.rename(self.world.root / f"{storage.name}{SENTINEL_NAME}")

    async def op_mount(self) -> None:
        for storage in self.world.storages.list():
            kept = self.world.root / f"{storage.name}{SENTINEL_NAME}"
            if kept.exists():
                kept.rename(self.world.sentinel_of(storage.name))
        await self.world.storages.verify_roots()

    async def op_fault(self) -> None:
        if self.world.stores:
            backend = list(self.world.stores.values())[self.pick(len(self.world.stores))]
            match self.pick(4):
                case 0:
                    backend.failing_keys = {KEYS[self.pick(len(KEYS))]}
                case 1:
                    backend.failing_keys = set()
                case 2:
                    backend.failing_syncs += 1
                case _:
                    backend.faults.append((Fault.REFUSE, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LOST_HALF_WAY)[self.pick(4)])

    async def op_lose(self) -> None:
        """Somebody deletes the file of a readable block by hand."""
        serving = [location for _, _, location in self.world.locations() if location.status is Status.SERVING]
        if serving and not self.world.packed:
            for uri in self.world.uris_of(serving[self.pick(len(serving))]):
                self.checker.lost_on_purpose.add(uri)
                path_of(uri).unlink(missing_ok=True)

    async def op_demote(self) -> None:
        """Leadership is lost and won again in an orderly way."""
        self.excused.update(write.session_id for write in self.writes)
        self.crashed = True
        self._note_cut_removals()
        self.world.term.ending = True
        cleanup = asyncio.ensure_future(self.world.manager.cleanup())
        await self._until(cleanup)
        demand("I-WL-4", len(self.world.manager.sessions) == 0, "sessions are left after clean-up")
        demand("I-WL-4", not self.world.manager._work, "changes go on after clean-up")
        self.excused.update(write.session_id for write in self.writes)
        self.world.term.epoch += 1
        self.world.term.ending = False
        await self._until(asyncio.ensure_future(self.world.manager.recover()))

    def _note_cut_removals(self) -> None:
        self.cut_removals.update(instance for instance, count in self.removals.items() if count)
        self.cut_removals.update(shard.instance_id for shard in self.world.holders() if shard.condemn_needed)

    async def _until(self, call: asyncio.Future[None]) -> None:
        await self.scheduler.settle()
        while not call.done():
            await self.scheduler.release(self.pick(len(self.scheduler.pending())))
        call.result()

    async def op_crash(self) -> None:
        self.crashed = True
        self._note_cut_removals()
        self.world.manager._work.cut()
        for task in self._tasks:
            task.cancel()
        await self.scheduler.settle()
        self._tasks.clear()
        await self.op_mount()  # a storage that cannot be opened at recovery is another story
        self.excused.update(write.session_id for write in self.writes)
        self.checker.forget_process()
        await self._until(asyncio.ensure_future(self.world.restart()))
        self.checker.forget_process()


async def tell(
    world: ManagerWorld, scheduler: Scheduler, choices: Sequence[int], ops: Sequence[str], *, kind: StorageKind = "file", per_file: int = 1
) -> Story:
    """Set a world up with two instances of one group, run a story in it, and bring it to its end."""
    delay_ms = 2000
    await scheduler.run([world.simple(kind, per_file, delay_ms=delay_ms, instances=INSTANCES)])
    story = Story(world, scheduler, choices, ops, delay_us=delay_ms * 1000)
    await story.run()
    await story.end()
    return story


def run_story(
    codec: WireCodec,
    choices: Sequence[int],
    ops: Sequence[str],
    *,
    metadata: Metadata = "suspending",
    kind: StorageKind = "file",
    per_file: int = 1,
) -> Story:
    """Tell one story in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        scheduler = Scheduler()
        world = ManagerWorld(Path(folder), codec, metadata=metadata, scheduler=scheduler, seed=len(choices), suspend_answers=len(choices) % 2 == 1)
        return asyncio.run(tell(world, scheduler, choices, ops, kind=kind, per_file=per_file))
