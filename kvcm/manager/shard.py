"""The state of one instance (design D11): everything about its blocks is reached through its shard and through nothing else.

Blocks are only ever reused inside one instance, so shards share nothing but their group's usage counter.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.config.model import Instance
from kvcm.manager.ports import WireCodec
from kvcm.meta.index import MetaIndex


class InstanceShard:
    def __init__(self, instance: Instance, index: MetaIndex, codec: WireCodec) -> None:
        self.index = index
        self.closed = False
        """True once the instance was removed: its blocks are being deleted and no request reaches it any more."""
        self.redrive_needed = False
        """True when DELETING locations exist that no queue holds (it was full, or the process has just recovered)."""
        self._codec = codec
        self.configure(instance)

    def configure(self, instance: Instance) -> None:
        """Set the registered instance; also when an id is registered anew while its old blocks are still being deleted."""
        self.instance = instance
        self.spec_sizes = {info.name: info.size for info in instance.location_spec_infos}
        self.spec_groups = {group.name: frozenset(group.spec_names) for group in instance.location_spec_groups}
        self.padded = self._codec.encode_padded([info.name for info in instance.location_spec_infos])
        self.has_groups = bool(self.spec_groups)

    @property
    def instance_id(self) -> str:
        return self.instance.instance_id

    def ordered(self, names: Iterable[str]) -> list[str]:
        """Spec names in registration order, unknown ones dropped."""
        wanted = set(names)
        return [name for name in self.spec_sizes if name in wanted]
