"""Block masks between the messages of the meta and admin packages and plain values (wire contract 4.3).

A mask is either a number n (the first n indexes are masked) or a tuple with one bool an index. What a mask means, and whether its length fits,
is the business of each RPC; a negative number is passed on as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Mask = int | tuple[bool, ...]


def mask_from_proto(msg: Any) -> Mask:
    """A BlockMask that is present; one without a member counts as an empty list of bools."""
    if msg.WhichOneof("info") == "offset":
        return int(msg.offset)
    return tuple(msg.bool_masks.values)


def mask_of(req: Any, field: str = "block_mask") -> Mask | None:
    """The mask in a field of a request, None when it is absent."""
    return mask_from_proto(getattr(req, field)) if req.HasField(field) else None


def mask_to_proto(mask: int | Sequence[bool], msg: Any) -> None:
    """Fill a BlockMask. Its member is always set, also for offset 0 and an empty list."""
    if isinstance(mask, int):
        msg.offset = mask
        return
    msg.bool_masks.values[:] = mask
    msg.bool_masks.SetInParent()
