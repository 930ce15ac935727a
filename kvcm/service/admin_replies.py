"""Small parts that the replies of AdminService share."""

from __future__ import annotations

from typing import Any

from kvcm.common.errors import ErrorCode
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.service.replies import fill_header, missing
from kvcm.service.rpc import Call, Reply

OK = int(ErrorCode.OK)


def done(call: Call, message: str = "") -> Reply:
    """Success without data; `message` is for what the caller should know all the same."""
    response = admin.CommonResponse()
    response.header.status.message = message
    return finish(response, call)


def finish(response: Any, call: Call) -> Reply:
    fill_header(response.header, call)
    return OK, response.SerializeToString()


def required(request: Any, rpc: str, field: str) -> str:
    """A text that must be there. Raises InvalidArgument in the form of wire contract 4.1."""
    value: str = getattr(request, field)
    if not value:
        raise missing(rpc, field)
    return value
