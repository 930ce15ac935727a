"""An engine: writes blocks through a manager and reads them back, byte by byte."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from kvcm.client import BlockBuffer, ClientConfig, InitParams, ManagerClient, RoleType

BLOCK_BYTES = 16 * 1024
_SPEC = "tp0"


class Engine:
    def __init__(self, client: ManagerClient) -> None:
        self.client = client

    def write(self, *keys: int) -> int:
        """How many were new."""
        return self.client.write_blocks(keys, [BlockBuffer.of(content(key)) for key in keys])

    def read(self, *keys: int) -> int:
        """How many leading ones are there and have the very bytes that were written. AssertionError when bytes differ."""
        memory = [bytearray(BLOCK_BYTES) for _ in keys]
        found = self.client.read_prefix(keys, [BlockBuffer.of(piece) for piece in memory])
        for key, piece in zip(keys[:found], memory, strict=False):
            assert bytes(piece) == content(key), f"block {key} came back with other bytes"
        return found

    def remove(self, *keys: int) -> None:
        self.client.meta.remove_cache(keys)


@contextmanager
def engine(address: str, group: str, instance: str = "engine") -> Iterator[Engine]:
    """`address`: host:port of a manager's meta gRPC port. Registers the instance with the group."""
    config = {
        "instance_group": group,
        "instance_id": instance,
        "block_size": 16,
        "address": [address],
        "location_spec_infos": {_SPEC: BLOCK_BYTES},
        "model_deployment": {"model_name": "story", "dtype": "bf16", "tp_size": 1},
        "meta_channel_config": {"call_timeout": 5000},
    }
    with ManagerClient.create(ClientConfig.parse(config), InitParams(RoleType.HYBRID, _SPEC)) as client:
        yield Engine(client)


def content(key: int) -> bytes:
    return random.Random(key).randbytes(BLOCK_BYTES)
