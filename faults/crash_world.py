"""Managers that are made to crash or to lose an answer at a fail point, over every kind of store, and what must be true afterwards.

    with CrashWorld("through", folder) as world:
        world.put(world.keys(3))
        manager = world.leader
        world.arm(manager, "blocks.condemn.after/crash")
        world.remove([1])
        world.wait_crash(manager)
        world.recover()
        world.check()

The client's view is kept here: blocks that must be readable from where they were, and blocks of which only one of two ends is possible. `check` compares it
with what managers say and with a recount of the stores, which is read past the managers.

Danger: a story that passes because nothing crashed. `wait_crash` wants the process killed by the signal that only a fail point sends.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import grpc

from faults.crash_stores import Stores, metrics_of
from faults.fake_time import SteppedClock
from kvcm.common.errors import NotReady
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_blocks import SIZE, Engine, StartedWrite, path_of
from kvcm.service.testing_wire import DEBUG, GrpcWire, HttpWire, code

NAME: Final = "crash"
LEASE_MS: Final = 3000
_PATIENCE_S: Final = 30.0
_START_S: Final = 120.0
_POLL_S: Final = 0.02
_ACCOUNTS: Final = 230
_LOOKS: Final = 4


def until(true: Callable[[], bool], what: str, seconds: float = _PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(_POLL_S)


class CrashWorld:
    """`kind`: see `crash_stores.KINDS`. `nodes`: with two, the other one takes over; with one, the same is started again. `steppable`: each manager has a wall
    clock of its own, in `clocks`; needs libfaketime."""

    def __init__(self, kind: str, folder: Path, nodes: int = 1, *, steppable: bool = False, lease_ms: int = LEASE_MS) -> None:
        self.kind = kind
        self.folder = folder
        self._nodes = nodes
        self.lease_ms = lease_ms
        self._stack = ExitStack()
        self.stores = Stores(kind, folder, NAME)
        self.managers: list[ManagerProcess] = []
        self.clocks = [SteppedClock(folder / f"clock-{number}") for number in range(nodes if steppable else 0)]
        self.kept: dict[int, str] = {}
        """Acknowledged and never removed: block -> where it must be readable."""
        self.either: dict[int, str] = {}
        """Nobody knows the outcome: readable there, or gone."""
        self.seen: set[int] = set()
        self.instances: set[str] = set()
        self.maybe_instances: set[str] = set()
        self._next = 1
        self._lost_tail: set[Path] = set()
        """Files of blocks that may have been lost with the process: nobody may know of them any more."""

    def __enter__(self) -> CrashWorld:
        try:
            self._stack.enter_context(self.stores)
            for number in range(self._nodes):
                environ = self.clocks[number].environ if self.clocks else None
                self.managers.append(ManagerProcess(self._settings(number), ready_s=_START_S, environ=environ))
            with ThreadPoolExecutor(self._nodes) as pool:
                list(pool.map(self._stack.enter_context, self.managers))
            self.wait_served(instance=False)
            self.engine.set_up(NAME, "nfs", indexer=self.stores.indexer)
            self.instances.add(NAME)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for manager in self.managers:
            if manager.process is not None and manager.process.poll() is None:
                manager.kill()
        self._stack.close()

    def _settings(self, number: int) -> dict[str, str]:
        return {
            **self.stores.settings,
            "kvcm.leader_elector.node_id": f"node-{number}",
            "kvcm.leader_elector.lease_ms": str(self.lease_ms),
            "kvcm.leader_elector.loop_interval_ms": "50",
            "kvcm.service.enable_debug_service": "true",
            "kvcm.debug.fail_points": "on",
        }

    # -- who is there --------------------------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[ManagerProcess]:
        return [manager for manager in self.managers if manager.process is not None and manager.process.poll() is None]

    @property
    def leader(self) -> ManagerProcess:
        found = self._find_leader()
        if found is None:
            until(lambda: self._find_leader() is not None, "somebody leads")
            found = self._find_leader()
        assert found is not None
        return found

    def _find_leader(self) -> ManagerProcess | None:
        return next((manager for manager in self.alive if _leads(manager)), None)

    @property
    def follower(self) -> ManagerProcess:
        """The other one; the leader where there is no other."""
        leader = self.leader
        return next((manager for manager in self.alive if manager is not leader), leader)

    @property
    def engine(self) -> Engine:
        leader = self.leader
        engine = Engine(HttpWire(leader.http_url), HttpWire(leader.admin_http_url), self.folder)
        engine.name = NAME
        return engine

    def keys(self, count: int) -> list[int]:
        """New ones."""
        found = list(range(self._next, self._next + count))
        self._next += count
        self.seen.update(found)
        return found

    # -- fail points ---------------------------------------------------------------------------------------------------------------------------

    def arm(self, manager: ManagerProcess, what: str) -> None:
        reply = GrpcWire(manager.admin_address, DEBUG).call("InjectFault", {"api_name": f"fail_point/{what}"})
        assert code(reply) == "OK", reply

    @staticmethod
    def wait_crash(manager: ManagerProcess) -> None:
        """Until the armed point has ended the process."""
        try:
            ended = manager.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError("the point was never passed") from None
        assert ended == -signal.SIGKILL, f"the manager ended with {ended}"

    def recover(self) -> None:
        """Who has crashed is started again, and everything is served."""
        dead = [manager for manager in self.managers if manager not in self.alive]
        if self.alive:
            self.wait_served()
        for manager in dead:
            manager.start()
        self.wait_served()

    def wait_served(self, *, instance: bool = True) -> None:
        def served() -> bool:
            leader = self._find_leader()
            if leader is None or not instance:
                return leader is not None
            return attempt(lambda: HttpWire(leader.http_url).call("GetInstanceInfo", {"trace_id": "t", "instance_id": NAME})) == "OK"

        until(served, "a leader serves")

    # -- what clients do; each copes with a manager that goes away ---------------------------------------------------------------------------------

    def put(self, keys: list[int]) -> bool:
        """Start, save, finish. True if it was acknowledged."""
        engine = self.engine
        started: list[StartedWrite] = []
        if attempt(lambda: started.append(engine.start(keys))) != "OK":
            return False
        (write,) = started
        assert write.keys == keys
        engine.save(write)
        places = {key: place["tp0"] for key, place in zip(write.keys, write.places, strict=True)}
        finishing = engine.finishing(write, {"bool_masks": {"values": [True] * len(keys)}})
        for _ in range(2):  # a finish that failed leaves its session open and can be repeated
            outcome = attempt(lambda: engine.meta.call("FinishWriteCache", {"trace_id": "t", **finishing}))
            if outcome == "OK":
                self.kept |= places
                return True
            if outcome == "lost":
                break
        self.either |= places
        return False

    def remove(self, keys: list[int]) -> None:
        """They must be gone in the end if it was acknowledged."""
        engine = self.engine
        places = {key: self.kept.pop(key) for key in keys}
        if attempt(lambda: engine.meta.call("RemoveCache", {"trace_id": "t", "instance_id": NAME, "block_keys": keys})) != "OK":
            self.either |= places

    def register(self, instance_id: str) -> bool:
        engine = self.engine
        request = engine.registration() | {"instance_id": instance_id}
        if attempt(lambda: engine.meta.call("RegisterInstance", request)) == "OK":
            self.instances.add(instance_id)
            self.maybe_instances.discard(instance_id)
            return True
        self.maybe_instances.add(instance_id)
        return False

    def load_many(self) -> None:
        """A change of the registry that is larger than one transaction: all of it counts, or nothing (see `_check_accounts`)."""
        engine = self.engine
        stored = self.stores.registry().tables.get("account", {}).values()
        role = 1 - next((record["role"] for record in stored), 0)
        accounts = [{"user_name": f"user-{number:03}", "role": role} for number in range(_ACCOUNTS)]
        text = json.dumps({"format": "kvcm-config-snapshot", "version": 1, "accounts": accounts})
        outcome = attempt(lambda: engine.admin.call("LoadConfigSnapshot", {"trace_id": "t", "config_snapshot": text}))
        assert outcome != "INVALID_ARGUMENT", "the snapshot is wrong"

    def demote(self) -> None:
        """Where there is another node, that one takes over."""
        engine = self.engine
        delay_ms = self.lease_ms if len(self.alive) > 1 else 0
        engine.ok(engine.admin, "UpdateLeaderElectorConfig", campaign_delay_time_ms=delay_ms)
        attempt(lambda: engine.admin.call("LeaderDemote", {"trace_id": "t"}))

    def synced(self) -> None:
        """Everything that was acknowledged is in the store (where it is written behind)."""
        until(lambda: metrics_of(self.leader.admin_http_url).get("meta_redis_behind_blocks", 0) == 0, "what was acknowledged is stored")

    def lose_tail(self, kept: dict[int, str]) -> None:
        """What was acknowledged since `kept` may be lost with the process (where it is written behind)."""
        for key in kept.keys() ^ self.kept.keys():
            self.either[key] = self.kept.pop(key, kept.get(key, ""))
        self._lost_tail |= {path_of(uri) for uri in self.either.values()}

    # -- what must be true ---------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def named(self, what: str) -> Iterator[None]:
        """Failures inside say what was tried, and what the managers wrote last."""
        try:
            yield
        except (AssertionError, NotReady) as error:
            logs = "\n".join(f"{manager.log[-4000:]}" for manager in self.managers)
            raise AssertionError(f"{what}: {error}\nThe end of the managers' logs:\n{logs}") from error

    def term(self) -> tuple[ManagerProcess, int]:
        """Who leads, and since which epoch."""
        leader = self.leader
        return leader, int(HttpWire(leader.admin_http_url).call("GetManagerClusterInfo", {"trace_id": "t"})["leader_epoch"])

    def check(self) -> None:
        """Everything unfinished ends; then clients, managers and stores agree. Anew when leadership has changed meanwhile: a busy machine does that."""
        for left in range(_LOOKS, 0, -1):
            term = self.term()
            try:
                self.synced()
                self._check()
                return
            except (AssertionError, OSError, HTTPException):
                if left == 1 or self.term() == term:
                    raise
                self.wait_served()

    def _check(self) -> None:
        engine = self.engine
        until(lambda: self.stores.unsettled(self._ids()) == 0, "nothing is half written or half deleted")
        stored = self.stores.blocks(self._ids())
        places = [uri for records in stored.values() for uris in records.values() for uri in uris]
        assert len(places) == len(set(places)), "one place has two owners"
        mine = stored.get(NAME, {})
        for key, uri in self.kept.items():
            assert mine.get(key) == [uri], f"block {key} was acknowledged at {uri}; the store has {mine.get(key)}"
        for key, uri in self.either.items():
            assert mine.get(key) in (None, [uri]), f"block {key} was written to {uri}; the store has {mine.get(key)}"
        assert mine.keys() <= self.kept.keys() | self.either.keys(), "a block is there that nobody has finished, or that was removed"
        self.kept |= {key: uri for key, uri in self.either.items() if key in mine}
        self.either.clear()
        until(lambda: self._counts() == (len(places), SIZE * len(places), SIZE * len(places)), f"counts are those of {len(places)} blocks: {self._counts()}")
        self._check_answers(engine, mine)
        owned = {path_of(uri) for uri in places}
        until(lambda: owned <= self._files() <= owned | self._lost_tail, "the files are those of the blocks")
        self._check_registry(engine)

    def _check_answers(self, engine: Engine, mine: dict[int, list[str]]) -> None:
        keys = sorted(self.seen)
        assert [key for key, states in zip(keys, engine.states(keys), strict=True) if states == ["CLS_SERVING"]] == sorted(mine)
        served = sorted(self.kept)
        assert [place["tp0"] for place in engine.prefix(served)] == [self.kept[key] for key in served]
        assert all(path_of(uri).stat().st_size == SIZE for uri in self.kept.values())

    def _check_registry(self, engine: Engine) -> None:
        listed = {item["instance_id"] for item in engine.ok(engine.admin, "ListInstanceInfo", instance_group_name=NAME)["instance_info"]}
        assert listed == self.stores.registered(), "the registry and its store differ"
        assert self.instances <= listed <= self.instances | self.maybe_instances
        for instance_id in sorted(self.maybe_instances):
            assert self.register(instance_id), "what may have been registered can be registered"
        self.maybe_instances.clear()
        self._check_accounts(engine)

    def _check_accounts(self, engine: Engine) -> None:
        stored = {name: record["role"] for name, record in self.stores.registry().tables.get("account", {}).items()}
        listed = {item["user_name"]: item["role"] for item in engine.ok(engine.admin, "ListAccount")["accounts"]}
        assert listed.keys() == stored.keys(), "the accounts and their store differ"
        assert len(stored) in (0, _ACCOUNTS), f"a change of {_ACCOUNTS} accounts counts for {len(stored)}"
        assert len(set(stored.values())) <= 1, "a change of the role of all accounts counts for some"
        assert len(set(listed.values())) <= 1, "a change of the role of all accounts is published for some"

    def _counts(self) -> tuple[float, float, float]:
        found = metrics_of(self.leader.admin_http_url)
        names = ("meta_indexer_total_key_count", "meta_indexer_total_data_size", f'cache_manager_group_used_bytes{{instance_group="{NAME}"}}')
        return (found.get(names[0], -1), found.get(names[1], -1), found.get(names[2], -1))

    def _files(self) -> set[Path]:
        return {path for path in (self.folder / NAME).rglob("*") if path.is_file() and not path.name.startswith(".")}

    def _ids(self) -> Iterable[str]:
        return self.instances | self.maybe_instances


def attempt(call: Callable[[], Any]) -> str:
    """The code of the answer, the reason of a failure, or `lost` when the manager went away."""
    try:
        answer = call()
    except (OSError, HTTPException, grpc.RpcError, urllib.error.URLError):
        return "lost"
    except AssertionError as error:
        return str(error)
    return code(answer) if isinstance(answer, dict) else "OK"


def _leads(manager: ManagerProcess) -> bool:
    try:
        return bool(HttpWire(manager.admin_http_url).call("CheckHealth", {"trace_id": "t"})["is_leader"])
    except (OSError, HTTPException, urllib.error.URLError):
        return False
