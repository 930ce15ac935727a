"""An engine in a pod that never stops: it writes blocks, reads them back byte by byte, and remembers every one that was acknowledged.

Run as a program of its own in the project's image: `checker.py GROUP PORT NAME=ADDRESS...`, one writer for each route to the managers. Asked over HTTP:

    GET /ready     200 as soon as every route has had a block acknowledged, else 503
    GET /lap       what each route did since the last lap, as JSON, and begin a new one
    GET /verify    read all blocks that were ever acknowledged, by a client that was made just now; how many, and what is wrong

A write is acknowledged when `write_blocks` has returned. What failed, or has an unknown outcome, is counted and never asked for again.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvcm.client import BlockBuffer, ClientConfig, InitParams, ManagerClient, RoleType
from kvcm.client.errors import ClientError

BLOCK_BYTES = 1024
_SPEC = "tp0"
_PAUSE_S = 0.05
_PATIENCE_MS = 1000
_VERIFY_PATIENCE_MS = 20_000
_PART = 128
_MAX_PROBLEMS = 20
_BASE = 1_000_000_000


@dataclass(slots=True)
class Lap:
    """Seconds and counts of one route since the lap began. `refused_s`: the longest time between two successes, the current one's included."""

    acknowledged: int = 0
    read: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    refused_s: float = 0.0


class Route:
    """One writer. What it has been told is in `keys`; `problems` are broken promises."""

    def __init__(self, name: str, address: str, group: str, number: int) -> None:
        self.name = name
        self.address = address
        self.keys: list[int] = []
        self.problems: list[str] = []
        self._group = group
        self._next = number * _BASE
        self._lap = Lap()
        self._good_at = time.monotonic()
        self._lock = threading.Lock()

    def run(self) -> None:
        """For ever."""
        while True:
            try:
                with ManagerClient.create(config(self.address, self._group), InitParams(RoleType.HYBRID, _SPEC)) as client:
                    while True:
                        self._turn(client)
                        time.sleep(_PAUSE_S)
            except ClientError as error:  # no leader yet: the client could not be made
                self._failed("connect", error)
                time.sleep(_PAUSE_S)

    def lap(self) -> dict[str, object]:
        with self._lock:
            done, self._lap = self._lap, Lap()
            now = time.monotonic()
            refused, self._good_at = max(done.refused_s, now - self._good_at), now
        return {
            "acknowledged": done.acknowledged,
            "read": done.read,
            "failed": dict(done.failed),
            "refused_s": round(refused, 3),
            "problems": self.problems[:_MAX_PROBLEMS],
        }

    def _turn(self, client: ManagerClient) -> None:
        self._next += 1
        key = self._next
        try:
            written = client.write_blocks([key], [BlockBuffer.of(content(key))])
        except ClientError as error:
            self._failed("write", error)
            return
        if written != 1:
            self.problems.append(f"block {key} is new and was called known")
        with self._lock:
            self.keys.append(key)
            self._lap.acknowledged += 1
            self._good()
        for wanted in (key, random.choice(self.keys)):
            try:
                found = wrong(client, [wanted])
            except ClientError as error:
                self._failed("read", error)
                return
            self.problems += found
            with self._lock:
                self._lap.read += 1

    def _good(self) -> None:
        now = time.monotonic()
        self._lap.refused_s = max(self._lap.refused_s, now - self._good_at)
        self._good_at = now

    def _failed(self, step: str, error: ClientError) -> None:
        with self._lock:
            self._lap.failed[f"{step} {type(error).__name__}"] += 1


def config(address: str, group: str, patience_ms: int = _PATIENCE_MS) -> ClientConfig:
    return ClientConfig.parse(
        {
            "instance_group": group,
            "instance_id": "checker",
            "block_size": 16,
            "address": [address],
            "location_spec_infos": {_SPEC: BLOCK_BYTES},
            "model_deployment": {"model_name": "story", "dtype": "bf16", "tp_size": 1},
            "meta_channel_config": {"call_timeout": 2000, "connection_timeout": 1000, "failover_timeout": patience_ms},
        }
    )


def content(key: int) -> bytes:
    return random.Random(key).randbytes(BLOCK_BYTES)


def wrong(client: ManagerClient, keys: list[int]) -> list[str]:
    """Sentences about blocks that are not there, or have other bytes. Raises ClientError."""
    memory = [bytearray(BLOCK_BYTES) for _ in keys]
    found = client.read_prefix(keys, [BlockBuffer.of(piece) for piece in memory])
    sentences = [f"block {key} has other bytes" for key, piece in zip(keys[:found], memory, strict=False) if bytes(piece) != content(key)]
    return sentences if found == len(keys) else [*sentences, f"block {keys[found]} was acknowledged and is gone"]


class Checker:
    def __init__(self, group: str, routes: dict[str, str]) -> None:
        self.routes = [Route(name, address, group, number) for number, (name, address) in enumerate(routes.items(), start=1)]
        self._group = group

    def start(self) -> None:
        for route in self.routes:
            threading.Thread(target=route.run, name=route.name, daemon=True).start()

    def ready(self) -> bool:
        return all(route.keys for route in self.routes)

    def laps(self) -> dict[str, object]:
        return {route.name: route.lap() for route in self.routes}

    def verify(self) -> dict[str, object]:
        """Everything that had been acknowledged when it began."""
        keys = [key for route in self.routes for key in list(route.keys)]
        problems = [problem for route in self.routes for problem in route.problems]
        try:
            with ManagerClient.create(config(self.routes[0].address, self._group, _VERIFY_PATIENCE_MS), InitParams(RoleType.HYBRID, _SPEC)) as client:
                for at in range(0, len(keys), _PART):
                    problems += wrong(client, keys[at : at + _PART])
        except ClientError as error:
            problems.append(f"the blocks could not be read: {type(error).__name__} {error}")
        return {"blocks": len(keys), "problems": problems[:_MAX_PROBLEMS]}


def handler_of(checker: Checker) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/ready":
                self._answer(200 if checker.ready() else 503, {})
            elif self.path == "/lap":
                self._answer(200, checker.laps())
            elif self.path == "/verify":
                self._answer(200, checker.verify())
            else:
                self._answer(404, {})

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: probes come every second."""

        def _answer(self, status: int, body: dict[str, object]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def main() -> None:
    group, port, *routes = sys.argv[1:]
    checker = Checker(group, dict(route.split("=", 1) for route in routes))
    checker.start()
    ThreadingHTTPServer(("", int(port)), handler_of(checker)).serve_forever()


if __name__ == "__main__":
    main()
