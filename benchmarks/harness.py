"""Start the measured process, load it, read its CPU time and memory. Linux only."""

from __future__ import annotations

import array
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from kvcm.config.persisted import group_to_dict, storage_to_dict
from kvcm.config.startup import default_group, default_storage
from kvcm.protocol import meta_service_pb2 as meta

INSTANCE = "bench-instance"
SPEC_BYTES = 1024
_SERVICE = "/kv_cache_manager.proto.meta.MetaService/"
_OPTIONS = [("grpc.max_receive_message_length", 64 << 20)]


@dataclass(frozen=True)
class Measured:
    pid: int
    meta: grpc.Channel
    peer: grpc.Channel
    admin_http_port: int
    metadata: tuple[tuple[str, str], ...] = ()
    """Sent with every call to the manager, e.g. an authorization."""

    def cpu_us(self) -> float:
        """CPU time of all threads of the process so far."""
        return cpu_us_of(self.pid)

    def rss(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def call(self, name: str, request: Any, reply_cls: Any) -> Any:
        reply = reply_cls.FromString(self.method(name)(request.SerializeToString(), timeout=60))
        assert reply.header.status.code == meta.OK, reply.header.status
        return reply

    def method(self, name: str) -> Any:
        """A callable from request bytes to reply bytes; `peer:` names go to the peer, `unchecked:` ones to the manager's RPC without asking who leads."""
        if name.startswith("unchecked:"):
            return _method(self.peer, f"/peer.unchecked/{name[10:]}")
        if name.startswith("peer:"):
            return _method(self.peer, f"/peer/{name[5:]}")
        return _WithMetadata(_method(self.meta, _SERVICE + name), self.metadata) if self.metadata else _method(self.meta, _SERVICE + name)


def cpu_us_of(pid: int) -> float:
    """CPU time of all threads of a process so far, from the scheduler's nanosecond clock."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1000


class _WithMetadata:
    """A method that sends the same metadata with each call."""

    def __init__(self, method: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._method = method
        self._metadata = metadata

    def __call__(self, request: bytes, timeout: float) -> Any:
        return self._method(request, timeout=timeout, metadata=self._metadata)

    def future(self, request: bytes, timeout: float | None = None) -> Any:
        return self._method.future(request, timeout=timeout, metadata=self._metadata)


def _method(channel: Any, path: str) -> Any:
    """Bytes in, bytes out (the stubs of grpc insist on serialisers)."""
    return channel.unary_unary(path)


@contextmanager
def measured_manager(
    key_count_per_file: int = 1,
    settings: Sequence[str] = (),
    metadata: tuple[tuple[str, str], ...] = (),
    log: Path | None = None,
    backend: tuple[str, str] = ("local", ""),
) -> Iterator[Measured]:
    """A manager with the built-in defaults but no limits, and a registered instance with one spec. `settings`: KEY=VALUE pairs; `log`: where it logs to;
    `backend`: kind and URI of the metadata backend."""
    with tempfile.TemporaryDirectory(prefix="kvcm-bench-") as folder:
        storage: dict[str, Any] = storage_to_dict(default_storage())
        storage["storage_spec"].update(root_path=f"{folder}/nfs/", key_count_per_file=key_count_per_file)
        group: dict[str, Any] = group_to_dict(default_group())
        group["quota"] = {"capacity": 1 << 50, "quota_config": []}
        group["cache_config"]["meta_indexer_config"]["max_key_count"] = 1 << 40
        group["cache_config"]["meta_indexer_config"]["meta_storage_backend_config"] = {"storage_type": backend[0], "storage_uri": backend[1]}
        startup = Path(folder, "startup.json")
        startup.write_text(json.dumps({"storage_config": storage, "instance_group": group}))
        port_file = Path(folder, "ports.json")
        with (log or Path("/dev/stderr")).open("ab") as stderr:
            process = subprocess.Popen([sys.executable, "-m", "benchmarks.peer_server", str(port_file), str(startup), *settings], stderr=stderr)
        try:
            ports = _wait_for(port_file, process)
            manager = Measured(
                pid=int(ports["pid"]),
                meta=grpc.insecure_channel(f"127.0.0.1:{ports['meta']}", _OPTIONS),
                peer=grpc.insecure_channel(f"127.0.0.1:{ports['peer']}", _OPTIONS),
                admin_http_port=int(ports["admin_http"]),
                metadata=metadata,
            )
            register = meta.RegisterInstanceRequest(
                instance_group="default",
                instance_id=INSTANCE,
                block_size=16,
                model_deployment=meta.ModelDeployment(model_name="m", dtype="bf16"),
                location_spec_infos=[meta.LocationSpecInfo(name="tp0", size=SPEC_BYTES)],
            )
            manager.call("RegisterInstance", register, meta.RegisterInstanceResponse)
            yield manager
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_for(port_file: Path, process: subprocess.Popen[bytes]) -> dict[str, int]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        if port_file.exists():
            found: dict[str, int] = json.loads(port_file.read_text())
            return found
        time.sleep(0.02)
    raise RuntimeError("the measured manager did not start")


def random_keys(count: int, seed: int) -> array.array[int]:
    """`count` signed 64-bit keys; an array, so that the driver's memory stays small."""
    generator = random.Random(seed)
    return array.array("q", generator.randbytes(8 * count))


def start_request(keys: Sequence[int]) -> bytes:
    return meta.StartWriteCacheRequest(trace_id="bench", instance_id=INSTANCE, block_keys=keys, write_timeout_seconds=60).SerializeToString()


def finish_request(session_id: str, count: int) -> bytes:
    return meta.FinishWriteCacheRequest(
        trace_id="bench", instance_id=INSTANCE, write_session_id=session_id, success_blocks=meta.BlockMask(offset=count)
    ).SerializeToString()


def read_request(keys: Sequence[int]) -> bytes:
    return meta.GetCacheLocationRequest(trace_id="bench", instance_id=INSTANCE, query_type=meta.QT_PREFIX_MATCH, block_keys=keys).SerializeToString()


def load(manager: Measured, keys: Sequence[int], batch: int = 256) -> None:
    """Write and finish all keys, `batch` blocks a session."""
    start, finish = manager.method("StartWriteCache"), manager.method("FinishWriteCache")
    for at in range(0, len(keys), batch):
        part = keys[at : at + batch]
        reply = meta.StartWriteCacheResponse.FromString(start(start_request(part), timeout=60))
        assert len(reply.locations) == len(part), reply.header
        done = meta.CommonResponse.FromString(finish(finish_request(reply.write_session_id, len(part)), timeout=60))
        assert done.header.status.code == meta.OK, done.header


def machine() -> str:
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "unknown")
    return f"{os.cpu_count()} cores, {model}, Linux {os.uname().release}, Python {sys.version.split()[0]}, grpcio {grpc.__version__}"
