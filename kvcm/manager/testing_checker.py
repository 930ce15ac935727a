"""Looks at every location of every shard after every step of a story, and remembers: what has happened must not be undone, and bytes go late.

Each violation names its invariant (behaviour 3.9, 4.4, 10.2, 11.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvcm.manager.testing import ManagerWorld, holds_bytes
from kvcm.meta.location import Location, Status

_Id = tuple[str, int, str]
_RANK = {Status.WRITING: 0, Status.SERVING: 1, Status.DELETING: 2}


def demand(invariant: str, holds: bool, detail: object = "") -> None:
    if not holds:
        raise AssertionError(f"{invariant} does not hold: {detail}")


class Checker:
    """Sees every location after every step. The clock stands still during a step, so the times it notes are exact."""

    def __init__(self, world: ManagerWorld, delay_us: int, *, one_copy: bool = True) -> None:
        self.world = world
        self.delay_us = delay_us
        self.one_copy = one_copy
        self.status: dict[_Id, Status] = {}
        self.served: set[_Id] = set()
        self.condemned_us: dict[_Id, int] = {}
        self.buried: set[_Id] = set()
        self.succeeded: set[str] = set()
        """URIs that a finish has named successful."""
        self.lost_on_purpose: set[str] = set()
        self.bytes_at_risk = False
        self.violations: list[AssertionError] = []
        world.storages.on_delete = self.on_delete

    def now(self) -> dict[_Id, Location]:
        return {(instance, key, location.location_id): location for instance, key, location in self.world.locations()}

    def on_delete(self, uris: Sequence[str]) -> None:
        """Right before bytes go. What it finds is raised by the next look: whoever deletes may catch any exception."""
        self.bytes_at_risk = True
        try:
            self._on_delete(uris)
        except AssertionError as violation:
            self.violations.append(violation)

    def _on_delete(self, uris: Sequence[str]) -> None:
        doomed = set(uris)
        for identity, location in self.now().items():
            if doomed.isdisjoint(self.world.uris_of(location)):
                continue
            demand("I-LOC-3", location.status is Status.DELETING, f"bytes of {identity} go while it is {location.status.name}")
            if self.status.get(identity) is Status.SERVING or identity in self.served:
                since = self.condemned_us.get(identity)
                waited = -1 if since is None else self.world.clock.monotonic_us() - since
                demand("I-LOC-5", waited >= self.delay_us, f"{identity} was deleted {waited} us after it left SERVING")

    def look(self) -> None:
        """After each step."""
        if self.violations:
            raise self.violations[0]
        current = self.now()
        for identity, location in current.items():
            self._transition(identity, location)
        held = {shard.instance_id for shard in self.world.holders()}
        for identity in [known for known in self.status if known not in current]:
            del self.status[identity]
            if identity[0] in held:  # else the whole shard was closed, and what it still has comes back with its id
                self.buried.add(identity)
        self._shards()
        if self.bytes_at_risk:
            self.bytes_at_risk = False
            self.bytes()

    def bytes(self) -> None:
        """No byte of a SERVING block is ever lost."""
        for identity, location in self.now().items():
            if location.status is Status.SERVING:
                for uri in self.world.uris_of(location):
                    demand("no lost data", uri in self.lost_on_purpose or holds_bytes(uri), f"{identity} is SERVING but {uri} is gone or wrong")

    def forget_process(self) -> None:
        """After a crash: the store may be ahead of what was seen, never behind."""
        self.status.clear()
        self.buried.clear()
        self.world.storages.on_delete = self.on_delete

    def _transition(self, identity: _Id, location: Location) -> None:
        status = location.status
        before = self.status.get(identity)
        demand("I-LOC-1", identity not in self.buried, f"{identity} came back")
        demand("I-LOC-1", status in _RANK, f"{identity} is {status.name}")
        if before is not None:
            demand("I-LOC-1", _RANK[before] <= _RANK[status], f"{identity} went from {before.name} to {status.name}")
        if status is Status.SERVING:
            demand("I-LOC-2", self.succeeded.issuperset(self.world.uris_of(location)), f"{identity} is SERVING and no finish named it")
            self.served.add(identity)
        if status is Status.DELETING and identity not in self.condemned_us:
            self.condemned_us[identity] = self.world.clock.monotonic_us()
        self.status[identity] = status

    def _shards(self) -> None:
        usage: Counter[str] = Counter()
        for shard in self.world.holders():
            keys = [key for page in shard.index.pages() for key in page]
            demand("I-MS-6", len(set(keys)) == shard.index.key_count, "key_count differs from the number of keys")
            total = 0
            for key in set(keys):
                block = shard.index.get(key)
                demand("I-MS-6", len(block) > 0, f"key {key} exists without a location")
                total += sum(location.size for location in block)
                if self.one_copy:
                    alive = [location for location in block if location.status is not Status.DELETING]
                    demand("I-CM-6", len(alive) <= 1, f"key {key} of {shard.instance_id} has {len(alive)} live copies")
            demand("I-MS-7", shard.index.usage.total == total, f"usage {shard.index.usage.total} but locations have {total}")
            usage[shard.instance.instance_group_name] += total
        for group in self.world.registry.list_groups():
            reported = self.world.manager.group_usage(group.name).total
            demand("I-MS-7", reported == usage[group.name], f"group usage {reported} but locations have {usage[group.name]}")
