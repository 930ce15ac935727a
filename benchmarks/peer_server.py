"""A manager process for measuring, with a peer handler in it.

The peer lives in the same process, on the same loop, behind a gRPC server of the same kind and options as the manager's. `Constant` parses the same request
type and returns fixed bytes; `Fix` sets them. What it costs is what transport and parsing cost: the manager's own work is the difference.

    python -m benchmarks.peer_server PORT_FILE STARTUP_CONFIG [KEY=VALUE ...]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import grpc
import uvloop

from kvcm.config.settings import Settings
from kvcm.config.settings_load import load_settings
from kvcm.metrics import gc_tuning
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.grpc.server import GrpcListener
from kvcm.service.in_flight import InFlight
from kvcm.service.logging_setup import set_up_logging
from kvcm.service.malloc_tuning import tune_malloc
from kvcm.service.server import ManagerServer


class Peer(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    def __init__(self) -> None:
        self._reply = b""
        self._methods = {
            "/peer/Constant": grpc.unary_unary_rpc_method_handler(self._constant),
            "/peer/Fix": grpc.unary_unary_rpc_method_handler(self._fix),
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)

    async def _constant(self, request: bytes, context: Any) -> bytes:
        meta.GetCacheLocationRequest.FromString(request)
        return self._reply

    async def _fix(self, request: bytes, context: Any) -> bytes:
        self._reply = request
        return b""


async def main(port_file: Path, settings: Settings) -> None:
    server = ManagerServer(settings, own_process=True)
    await server.start()
    await server.ready()
    # The peer needs neither dispatcher nor services: only what every gRPC listener of the manager has.
    peer = GrpcListener([], None, InFlight(), [Peer()])  # type: ignore[arg-type]
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
