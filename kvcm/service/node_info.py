"""What a node publishes about itself through the coordinator: the JSON of wire contract 5.7, and in it our own `role`, `epoch`, `copies` and `told_at_ms`.

Another make of manager publishes it without these, and whatever stands there was written by somebody else: everything is read with care.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from kvcm.coordination.elector import Role
from kvcm.service.cluster import CopiesView, CopyState, Endpoint, NodeView

_MAX_CHARS = 64 << 10
_NUMBERS = (("warm", (1 << 31) - 1), ("filling", (1 << 31) - 1), ("behind", (1 << 63) - 1), ("behind_ms", (1 << 63) - 1))
_STATES = {state.value: state for state in CopyState}
_ROLES = {role.value: role for role in Role}


def node_text(own: Endpoint, role: Role, epoch: int, copies: CopiesView | None = None, told_at_ms: int = 0) -> str:
    told: dict[str, Any] = asdict(own) | {"role": role.value, "epoch": epoch}
    if told_at_ms > 0:
        told["told_at_ms"] = told_at_ms
    if copies is not None:
        told["copies"] = asdict(copies) | {"state": copies.state.value}
    return json.dumps(told)


def parse_endpoint(info: str | None) -> Endpoint:
    """A node's published address; a blank one when it is missing or cannot be read."""
    node = parse_node(info)
    return node.endpoint if node is not None else Endpoint()


def parse_node(info: str | None) -> NodeView | None:
    """None for a text that is not what a node publishes."""
    if not info or len(info) > _MAX_CHARS:
        return None
    try:
        found = json.loads(info)
        endpoint = Endpoint(
            node_id=str(found.get("node_id", "")),
            host=str(found.get("host", "")),
            meta_rpc_port=_port(found, "meta_rpc_port"),
            meta_http_port=_port(found, "meta_http_port"),
            admin_rpc_port=_port(found, "admin_rpc_port"),
            admin_http_port=_port(found, "admin_http_port"),
            custom_info=str(found.get("custom_info", "")),
        )
        epoch = int(found.get("epoch", 0))
        role = _ROLES.get(str(found.get("role", "")))
        copies = _copies(found.get("copies")) if role is Role.FOLLOWER else None
        return NodeView(endpoint, role, _count(epoch), copies, _count(int(found.get("told_at_ms", 0))))
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _count(number: int) -> int:
    return number if 0 <= number < 1 << 63 else 0


def _copies(found: Any) -> CopiesView | None:
    state = _STATES.get(str(found.get("state", ""))) if isinstance(found, dict) else None
    if state is None:
        return None
    numbers = [(name, int(found.get(name, 0)), most) for name, most in _NUMBERS]
    return CopiesView(state, **{name: min(max(value, 0), most) for name, value, most in numbers})


def _port(found: Any, name: str) -> int:
    port = int(found.get(name, 0))
    if not 0 <= port < 65_536:
        raise ValueError(name)
    return port
