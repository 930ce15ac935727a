"""The manager that `kvcm replay` talks to: a running one, or one of its own for the length of the replay.

The own one lives in this process and keeps its blocks in a temporary folder, which goes away at the end whatever happened, also on SIGTERM.
Blocks are packed, many to a file: a trace has a hundred thousand of them, and they are small.
"""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GROUP = "replay"
_STORAGE = "replay"
_KEYS_PER_FILE = 32
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Target:
    """`addresses`: `host:port` texts or a discovery URL. `metrics_url` is empty when usage cannot be asked; `fresh`: empty and without limits."""

    addresses: tuple[str, ...]
    group: str
    metrics_url: str
    fresh: bool


@contextmanager
def embedded(folder: str | None) -> Iterator[Target]:
    """A manager with an unlimited group on a new folder below `folder` (None: the system's place for temporary files)."""
    from kvcm.service.embedded import EmbeddedManager

    with _stopped_by_sigterm(), tempfile.TemporaryDirectory(prefix="kvcm-replay-", dir=folder) as work:
        startup = Path(work, "startup.json")
        startup.write_text(_startup(Path(work, "blocks")), encoding="utf-8")
        with EmbeddedManager({"kvcm.startup_config": str(startup)}) as manager:
            yield Target((manager.meta_address,), GROUP, f"{manager.admin_http_url}/metrics", fresh=True)


def _startup(root: Path) -> str:
    from kvcm.config.model import CacheConfig, CachePreferStrategy, InstanceGroup, MetaIndexerConfig, Quota
    from kvcm.config.persisted import group_to_dict
    from kvcm.config.persisted_storage import storage_to_dict
    from kvcm.data_storage.model import NfsSpec, Storage, StorageType

    storage = Storage(name=_STORAGE, type=StorageType.NFS, spec=NfsSpec(root_path=f"{root}/", key_count_per_file=_KEYS_PER_FILE))
    group = InstanceGroup(
        name=GROUP,
        storage_candidates=(_STORAGE,),
        global_quota_group_name=GROUP,
        max_instance_count=1,
        quota=Quota(_NO_LIMIT),
        cache_config=CacheConfig(data_storage_strategy=CachePreferStrategy.PREFER_3FS, meta_indexer=MetaIndexerConfig(max_key_count=_NO_LIMIT)),
    )
    return json.dumps({"storage_config": storage_to_dict(storage), "instance_group": group_to_dict(group)})


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what was made is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
