"""The publishers that a configuration asks for (behaviour 17.2): `kvcm.event.event_publishers_configs`, a JSON text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_CONFIG_CHARS = 65_536
MAX_QUEUE = 10_000_000


@dataclass(frozen=True, slots=True)
class LogPublisherConfig:
    """`queue_size`: events that may wait."""

    enable: bool = False
    queue_size: int = 10_000


@dataclass(frozen=True, slots=True)
class OptimizerPublisherConfig:
    """Checked and kept; nothing acts on it yet."""

    enable: bool = False
    queue_size: int = 100_000
    max_subscribers: int = 4
    subscriber_queue_size: int = 10_000


@dataclass(frozen=True, slots=True)
class PublisherConfigs:
    log: LogPublisherConfig = LogPublisherConfig()
    optimizer: OptimizerPublisherConfig = OptimizerPublisherConfig()


def parse_publishers(text: str) -> PublisherConfigs:
    """Empty means none. Raises ValueError with the end of a sentence that begins with the setting's name."""
    if not text.strip():
        return PublisherConfigs()
    if len(text) > MAX_CONFIG_CHARS:
        raise ValueError(f"must have at most {MAX_CONFIG_CHARS} characters")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError('must be JSON like {"log":{"enable":true,"queue_size":10000}}') from None
    if not isinstance(found, dict):
        raise ValueError("must be a JSON object with a publisher's name before each block")
    unknown = sorted(set(found) - {"log", "optimizer"})
    if unknown:
        raise ValueError(f"names a publisher {_shown(unknown[0])} that does not exist; there are 'log' and 'optimizer'")
    return PublisherConfigs(
        log=LogPublisherConfig(**_block("log", found.get("log", {}), ("queue_size",))),
        optimizer=OptimizerPublisherConfig(
            **_block("optimizer", found.get("optimizer", {}), ("queue_size", "max_subscribers", "subscriber_queue_size")),
        ),
    )


def _block(name: str, block: object, sizes: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise ValueError(f"must have a JSON object after '{name}'")
    for key, value in block.items():
        if key == "enable":
            if not isinstance(value, bool):
                raise ValueError(f"must have true or false for '{name}.enable'")
        elif key not in sizes:
            raise ValueError(f"has an unknown field {_shown(key)} in '{name}'")
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_QUEUE:
            raise ValueError(f"must have a whole number from 1 to {MAX_QUEUE} for '{name}.{key}'")
    return dict(block)


def _shown(text: str) -> str:
    return repr(text[:40])
