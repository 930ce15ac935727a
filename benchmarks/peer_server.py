"""A manager process for measuring, with a peer handler in it.

The peer lives in the same process, on the same loop, behind a gRPC server of the same kind and options as the manager's. `Constant` parses the same request
type and returns fixed bytes; `Fix` sets them. What it costs is what transport and parsing cost: the manager's own work is the difference. The service
`peer.unchecked` is the manager's own, by the same dispatcher, without asking whether this node leads and its lease holds; `Checks` asks so a number of times.

    python -m benchmarks.peer_server PORT_FILE STARTUP_CONFIG [KEY=VALUE ...]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import uvloop

from kvcm.config.settings import Settings
from kvcm.config.settings_load import load_settings
from kvcm.metrics import gc_tuning
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service import listeners
from kvcm.service.grpc.server import GrpcListener
from kvcm.service.in_flight import InFlight
from kvcm.service.logging_setup import set_up_logging
from kvcm.service.malloc_tuning import tune_malloc
from kvcm.service.rpc import Dispatcher, Service
from kvcm.service.server import ManagerServer


class _Seen:
    """What the manager's listener was given."""

    services: Sequence[Service] = ()
    dispatcher: Dispatcher | None = None


class _WatchedListener(GrpcListener):
    def __init__(self, services: Sequence[Service], dispatcher: Dispatcher, *rest: Any, **more: Any) -> None:
        super().__init__(services, dispatcher, *rest, **more)
        if _Seen.dispatcher is None:
            _Seen.services, _Seen.dispatcher = services, dispatcher


def unchecked() -> Service:
    rpcs = {
        name: replace(rpc, leader_only=False) for service in _Seen.services if service.full_name.endswith("MetaService") for name, rpc in service.rpcs.items()
    }
    return Service("peer.unchecked", rpcs)


class Peer(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self) -> None:
        self._reply = b""
        self._methods = {
            "/peer/Constant": grpc.unary_unary_rpc_method_handler(self._constant),
            "/peer/Fix": grpc.unary_unary_rpc_method_handler(self._fix),
            "/peer/Checks": grpc.unary_unary_rpc_method_handler(self._checks),
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)

    async def _constant(self, request: bytes, context: Any) -> bytes:
        meta.GetCacheLocationRequest.FromString(request)
        return self._reply

    async def _fix(self, request: bytes, context: Any) -> bytes:
        self._reply = request
        return b""

    async def _checks(self, request: bytes, context: Any) -> bytes:
        """Both checks of a read as often as asked; nanoseconds of CPU for each pair."""
        assert _Seen.dispatcher is not None
        leader, now = _Seen.dispatcher._leader, time.monotonic_ns() // 1_000
        count = int(request)
        used = time.thread_time_ns()
        for _ in range(count):
            if not leader.may_serve(now) or not leader.lease_holds(now):
                raise RuntimeError("the measured manager does not lead")
        return b"%d" % ((time.thread_time_ns() - used) // count)


async def main(port_file: Path, settings: Settings) -> None:
    listeners.GrpcListener = _WatchedListener  # type: ignore[attr-defined]
    server = ManagerServer(settings, own_process=True)
    await server.start()
    await server.ready()
    assert _Seen.dispatcher is not None
    peer = GrpcListener([unchecked()], _Seen.dispatcher, InFlight(), [Peer()])
    peer_port = await peer.start(0, "peer")
    report = {"meta": server.endpoint.meta_rpc_port, "admin_http": server.endpoint.admin_http_port, "peer": peer_port, "pid": os.getpid()}
    temporary = port_file.with_suffix(".tmp")
    temporary.write_text(json.dumps(report))
    temporary.rename(port_file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    tune_malloc()
    gc_tuning.tune()
    loaded = load_settings(None, [f"kvcm.startup_config={sys.argv[2]}", *sys.argv[3:]], {}).settings
    writer = set_up_logging(loaded.logger_log_level)
    uvloop.run(main(Path(sys.argv[1]), loaded))
    writer.finish()
