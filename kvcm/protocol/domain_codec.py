"""Messages to domain objects and back: the one import for services and clients.

Presence of required fields is checked here, and only here; every problem of a request is reported in one `MissingFields`.
"""

from __future__ import annotations

from kvcm.protocol.group_codec import group_from_proto, group_from_reply, group_to_proto
from kvcm.protocol.instance_codec import instance_from_info, instance_from_request, instance_to_info, instance_to_request
from kvcm.protocol.mask_codec import Mask, mask_from_proto, mask_of, mask_to_proto
from kvcm.protocol.missing_fields import MissingFields, require_fields
from kvcm.protocol.storage_codec import storage_from_proto, storage_from_reply, storage_to_proto

__all__ = [
    "Mask",
    "MissingFields",
    "group_from_proto",
    "group_from_reply",
    "group_to_proto",
    "instance_from_info",
    "instance_from_request",
    "instance_to_info",
    "instance_to_request",
    "mask_from_proto",
    "mask_of",
    "mask_to_proto",
    "require_fields",
    "storage_from_proto",
    "storage_from_reply",
    "storage_to_proto",
]
