"""DebugService: fault injection (wire contract 2.4, 5.8). On any node, leader or not; replies carry no request_id, requests no trace_id."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kvcm.common.errors import ErrorCode, InvalidArgument, KvcmError
from kvcm.common.failpoints import FailPoints, parse_armed
from kvcm.protocol import debug_service_pb2 as debug
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.faults import Fault, Faults
from kvcm.service.rpc import Call, Dispatcher, Reply, Rpc, Service, table

FULL_NAME = "kv_cache_manager.proto.debug.DebugService"
FAULT_REQUESTS = {
    "RegisterInstance": meta.RegisterInstanceRequest,
    "GetCacheLocation": meta.GetCacheLocationRequest,
    "GetCacheLocationLen": meta.GetCacheLocationLenRequest,
    "GetCacheMetaDetail": meta.GetCacheMetaDetailRequest,
    "StartWriteCache": meta.StartWriteCacheRequest,
    "FinishWriteCache": meta.FinishWriteCacheRequest,
}
FAIL_POINT = "fail_point/"
"""What follows is `POINT/ACTION[@N]` to arm, `POINT` to remove (see kvcm.common.failpoints)."""
_CODES = frozenset(debug.ErrorCode.values())
_log = logging.getLogger("kvcm.service.debug")


def build_debug_service(dispatcher: Dispatcher, points: FailPoints | None = None) -> Service:
    """The service whose faults strike in `dispatcher`. `points`: what names that begin with `fail_point/` arm."""
    service = _DebugService(dispatcher, points)
    common = debug.CommonResponse
    rpcs = [
        Rpc("InjectFault", debug.InjectFaultRequest, common, _answered(service.inject), leader_only=False),
        Rpc("RemoveFault", debug.RemoveFaultRequest, common, _answered(service.remove), leader_only=False),
        Rpc("ClearFaults", debug.ClearFaultsRequest, common, _answered(service.clear), leader_only=False),
    ]
    return table(FULL_NAME, rpcs)


class _DebugService:
    def __init__(self, dispatcher: Dispatcher, points: FailPoints | None) -> None:
        self._dispatcher = dispatcher
        self._points = points
        self._faults = Faults(FAULT_REQUESTS)

    def inject(self, request: debug.InjectFaultRequest) -> str:
        if request.fault_type != debug.FT_INTERNAL_ERROR:
            raise InvalidArgument(f"fault_type {request.fault_type} is unknown; use FT_INTERNAL_ERROR")
        if request.fault_trigger_strategy not in (debug.ALWAYS, debug.ONCE):
            raise InvalidArgument(f"fault_trigger_strategy {request.fault_trigger_strategy} is unknown; use ALWAYS or ONCE")
        if request.api_name.startswith(FAIL_POINT):
            self._fail_points().arm(parse_armed(request.api_name.removeprefix(FAIL_POINT)))
            return ""
        at_call = request.trigger_at_call if request.fault_trigger_strategy == debug.ONCE else None
        self._faults.inject(request.api_name, Fault(at_call))
        self._changed()
        _log.warning("fault_injected api=%s at_call=%s", request.api_name, "every" if at_call is None else at_call)
        if self._faults.asks(request.api_name):
            return ""
        return f"kept, but no call of this name can fail; those that can are {', '.join(FAULT_REQUESTS)}"

    def remove(self, request: debug.RemoveFaultRequest) -> str:
        if request.api_name.startswith(FAIL_POINT):
            self._fail_points().disarm(request.api_name.removeprefix(FAIL_POINT))
            return ""
        self._faults.remove(request.api_name)
        self._changed()
        _log.info("fault_removed api=%s", request.api_name)
        return ""

    def clear(self, request: debug.ClearFaultsRequest) -> str:
        self._faults.clear()
        if self._points is not None:
            self._points.clear()
        self._changed()
        _log.info("faults_cleared")
        return ""

    def _fail_points(self) -> FailPoints:
        if self._points is None:
            raise InvalidArgument("this manager has no fail points; start it with kvcm.debug.fail_points=on, and never in production")
        return self._points

    def _changed(self) -> None:
        self._dispatcher.faults = self._faults if len(self._faults) else None


def _answered(work: Callable[[Any], str]) -> Callable[[Any, Call], Awaitable[Reply]]:
    async def handle(request: Any, call: Call) -> Reply:
        code, response = int(ErrorCode.OK), debug.CommonResponse()
        try:
            message = work(request)
        except KvcmError as error:
            # The package has fewer codes than the others.
            code = int(error.code) if int(error.code) in _CODES else int(ErrorCode.INVALID_ARGUMENT)
            message = error.message
        response.header.status.code = code  # type: ignore[assignment]  # checked above
        response.header.status.message = message
        return code, response.SerializeToString()

    return handle
