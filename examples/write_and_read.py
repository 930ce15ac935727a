"""Write a few KV blocks through a manager, read them back, and compare every byte.

    python examples/write_and_read.py --address 127.0.0.1:6381

The steps are those of an inference engine: ask where to write (StartWrite), move the bytes yourself (save), say what succeeded (FinishWrite);
later ask what is there (MatchLocation) and fetch it (load). The manager never sees the bytes. The group must have a file-system store that
this machine sees at the same path as the manager does. Running it again finds the blocks already stored and writes nothing.
"""

from __future__ import annotations

import argparse
import random
import sys

from kvcm.client import BlockBuffer, ClientConfig, ClientError, InitParams, ManagerClient, QueryType, RoleType

BLOCK_BYTES = 64 * 1024
BLOCKS = 4
SPEC = "tp0"


def config(address: str, group: str, instance: str) -> ClientConfig:
    """The same JSON object that an engine would read from its configuration file."""
    return ClientConfig.parse(
        {
            "instance_group": group,
            "instance_id": instance,
            "block_size": 16,
            "address": [address],
            "location_spec_infos": {SPEC: BLOCK_BYTES},
            "model_deployment": {"model_name": "example-model", "dtype": "bf16", "tp_size": 1},
            # The default call timeout of 100 ms is meant for a warm manager close by.
            "meta_channel_config": {"call_timeout": 2000},
        }
    )


def run(client: ManagerClient) -> str:
    """One round trip; returns a sentence about it."""
    keys = [1000 + index for index in range(BLOCKS)]
    contents = [random.Random(key).randbytes(BLOCK_BYTES) for key in keys]

    # 1. Which blocks are new, and where do they go? A masked block is stored already.
    session = client.meta.start_write(keys, write_timeout_seconds=30)
    new = session.block_mask.open_indexes(len(keys))
    checksums: tuple[int, ...] = ()
    success = [False] * len(new)
    try:
        if new:
            # 2. Move the bytes. K and V may lie apart: the pieces of a block are stored back to back.
            half = BLOCK_BYTES // 2
            blocks = [BlockBuffer.of(contents[index][:half], contents[index][half:]) for index in new]
            saved = client.transfer.save_kv_caches([location.uri(SPEC) for location in session.locations], blocks)
            checksums = saved.checksums
            success = [True] * len(new)
    finally:
        # 3. Always close the session. Only blocks marked as successful become visible.
        client.meta.finish_write(session.write_session_id, success, checksums=checksums)

    # 4. What is there now? The leading hits, with the checksums that were reported.
    found = client.meta.match_location(QueryType.PREFIX_MATCH, keys, want_checksums=True)
    if len(found.locations) != len(keys):
        raise SystemExit(f"only {len(found.locations)} of {len(keys)} blocks were found")

    # 5. Fetch the bytes into memory of our own and compare.
    memory = [bytearray(BLOCK_BYTES) for _ in keys]
    client.transfer.load_kv_caches(
        [location.uri(SPEC) for location in found.locations],
        [BlockBuffer.of(piece) for piece in memory],
        expected_checksums=found.checksums,
    )
    if any(bytes(piece) != content for piece, content in zip(memory, contents, strict=True)):
        raise SystemExit("a block came back with other bytes")
    return f"wrote {len(new)} blocks, read {len(keys)} blocks of {BLOCK_BYTES} bytes, all equal"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write KV blocks through a manager and read them back.")
    parser.add_argument("--address", required=True, help="host:port of a manager's meta gRPC port")
    parser.add_argument("--group", default="default", help="instance group (default: default)")
    parser.add_argument("--instance", default="example", help="instance id (default: example)")
    options = parser.parse_args()
    try:
        # A hybrid client talks to the manager and moves bytes; it learns of the stores when it registers.
        settings = config(options.address, options.group, options.instance)
        with ManagerClient.create(settings, InitParams(RoleType.HYBRID, SPEC)) as client:
            sys.stdout.write(run(client) + "\n")
    except ClientError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
