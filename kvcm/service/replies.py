"""Small parts that replies share."""

from __future__ import annotations

from typing import Any

from kvcm.common.errors import ErrorCode, InvalidArgument
from kvcm.service.rpc import Call


def fill_header(header: Any, call: Call) -> None:
    """A successful CommonResponseHeader of any package."""
    header.status.code = int(ErrorCode.OK)
    header.request_id = call.request_id


def missing(rpc: str, *fields: str) -> InvalidArgument:
    """The error for absent fields, in the form of wire contract 4.1."""
    return InvalidArgument(f"missing or invalid fields: {{{rpc}: {''.join(f'{{{field}}}' for field in fields)}}}")
