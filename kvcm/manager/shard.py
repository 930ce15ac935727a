"""The state of one instance (design D11): everything about its blocks is reached through its shard and through nothing else.

Blocks are only ever reused inside one instance, so shards share nothing but their group's usage counter. A shard stands for one registration: an id that
is registered anew gets a new shard, also when it takes over the index in which old blocks are still being deleted. So whoever began to work on the old
registration can see that it is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvcm.config.model import Instance
from kvcm.manager.event_report_roster import Roster
from kvcm.manager.ports import WireCodec
from kvcm.meta.index import PAGE_KEYS, MetaIndex
from kvcm.meta.location import Block, Location


class Upkeep:
    """What is still to be done about the blocks of an index, whichever shard stands before it."""

    def __init__(self) -> None:
        self.redrive_needed = False
        """True when DELETING locations may exist that no queue holds (it was full, or the index was just loaded)."""
        self.deletion_paused = False
        """True while the storages are being told which places live: a deletion now could take a packed file that holds more than they know."""
        self.orphans: list[tuple[int, Location]] = []
        """WRITING locations that were found when the index was loaded and are not DELETING yet: no session can ever finish them."""
        self.unsettled: list[int] | None = None
        """Right after a warm copy was taken over: the only keys whose blocks can have WRITING or DELETING locations; None when all have to be looked at."""
        self.adopted: dict[int, object] = {}
        """Storage slot -> the opened backend that knows the places there; None when the storage was not open at that time."""


class InstanceShard:
    def __init__(self, instance: Instance, index: MetaIndex, codec: WireCodec, upkeep: Upkeep | None = None) -> None:
        """`upkeep`: that of the shard whose index this one takes over."""
        self.index = index
        self.upkeep = upkeep or Upkeep()
        self.instance = instance
        self.closed = False
        """True once the instance was removed: its blocks are being deleted and no write may begin or end here any more."""
        self.condemn_needed = False
        """True while a removed instance may still have blocks that are not DELETING."""
        self.leftover = False
        """True for the blocks of an id that nobody has registered: only what is DELETING goes (see Instances)."""
        self.starts = 0
        """Start-writes under way."""
        self.reports: Roster | None = None
        """Hosts that report blocks to this instance; None until the first one does, and then nothing has to be hidden from readers."""
        self.plain = False
        self.plain_stamp = (-1, -1)
        """Whether a prefix read may take published bytes as they are, and for which state of storages and slots that was found (see Searcher)."""
        self.spec_sizes = {info.name: info.size for info in instance.location_spec_infos}
        self.spec_groups = {group.name: frozenset(group.spec_names) for group in instance.location_spec_groups}
        self.padded = codec.encode_padded([info.name for info in instance.location_spec_infos])
        self.has_groups = bool(self.spec_groups)

    @property
    def instance_id(self) -> str:
        return self.instance.instance_id

    def shown(self, block: Block) -> Block:
        """The block as readers see it: without what hosts have reported that are not there now, and what is no longer true."""
        return block if self.reports is None else self.reports.shown(block)

    def get_shown(self, key: int) -> Block:
        return self.shown(self.index.get(key))

    def unsettled_pages(self) -> Iterator[list[int]]:
        """Keys, page by page, among which all blocks with WRITING or DELETING locations are."""
        listed = self.upkeep.unsettled
        if listed is None:
            return self.index.pages()
        return (listed[at : at + PAGE_KEYS] for at in range(0, len(listed), PAGE_KEYS))

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Spec names in registration order, unknown ones dropped."""
        wanted = set(names)
        return [name for name in self.spec_sizes if name in wanted]
