"""What the coordinator keeps in etcd, as versioned JSON values, and under which keys.

| key below `/<prefix>/coordination/` | value | lease |
|---|---|---|
| `leader` | `{"version":1,"node_id":...,"epoch_base":n}`; the epoch is `epoch_base` plus the key's create revision | the leader's |
| `epoch_base` | `{"version":1,"epoch_base":n}`; 0 and absent unless an etcd has lost its data | none |
| `nodes/<node id>` | `{"version":1,"info":...}` | the node's own |
| `shared/<name>` | `{"version":1,"text":...}` | none |

Readers ignore fields that they do not know; nobody changes a value that another version wrote, except as a whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kvcm.common.errors import StorageError
from kvcm.coordination.port import Leader
from kvcm.etcd.model import KeyValue
from kvcm.etcd.uri import EtcdConfig


@dataclass(frozen=True, slots=True)
class Keys:
    leader: bytes
    epoch_base: bytes
    nodes: bytes
    shared: bytes

    @classmethod
    def of(cls, config: EtcdConfig) -> Keys:
        def key(name: str) -> bytes:
            return config.key("coordination", name)

        return cls(key("leader"), key("epoch_base"), key("nodes/"), key("shared/"))

    def node(self, node_id: str) -> bytes:
        return self.nodes + node_id.encode("utf-8", "surrogatepass")

    def node_id(self, key: bytes) -> str:
        return key.removeprefix(self.nodes).decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Held:
    """The leader's key as it was read."""

    leader: Leader
    create_revision: int
    lease: int
    value: bytes


def held(kv: KeyValue) -> Held:
    """Raises StorageError: a key that nobody understands still keeps everybody from leading, so people have to know."""
    fields = parse(kv.value)
    node_id, base = fields.get("node_id"), fields.get("epoch_base", 0)
    if not isinstance(node_id, str) or not isinstance(base, int) or base < 0:
        raise StorageError("The leader's key in etcd cannot be read; unless a newer KVCM wrote it, delete the key coordination/leader below the prefix.")
    return Held(Leader(node_id, base + kv.create_revision), kv.create_revision, kv.lease, kv.value)


def leader_value(node_id: str, epoch_base: int) -> bytes:
    return dump({"node_id": node_id, "epoch_base": epoch_base})


def base_of(kv: KeyValue | None) -> int:
    """Raises StorageError."""
    if kv is None:
        return 0
    base = parse(kv.value).get("epoch_base")
    if not isinstance(base, int) or base < 0:
        raise StorageError("The base of epochs in etcd cannot be read; restore the key coordination/epoch_base below the prefix.")
    return base


def text_of(kv: KeyValue | None, field: str) -> str | None:
    """None when there is nothing, or nothing that can be read."""
    found = parse(kv.value).get(field) if kv is not None else None
    return found if isinstance(found, str) else None


def dump(fields: dict[str, Any]) -> bytes:
    return json.dumps({"version": 1, **fields}, separators=(",", ":")).encode()


def parse(value: bytes) -> dict[str, Any]:
    """Empty for what is no JSON object."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
