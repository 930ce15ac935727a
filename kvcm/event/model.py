"""One thing that happened, for whoever publishes it (behaviour 17.1). What it says in detail is worked out only when it is delivered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MAX_ELEMENTS: Final = 16_384
"""A list in an event's text has at most so many elements; `<name>_count` then says how many there were."""
MAX_CHARS: Final = 1024
"""The same for each text; no name that the manager knows is longer than 256."""


@dataclass(frozen=True, slots=True)
class Event:
    """`event_id`: 32 characters. `source`: the instance id. `weight`: about how many bytes it keeps alive while it waits.
    `fields`: makes the rest; called in a publisher's thread, any number of times."""

    event_id: str
    source: str
    component: str
    type: str
    trigger_time_us: int
    weight: int
    fields: Callable[[], Mapping[str, object]]


def event_line(event: Event) -> str:
    """One line of JSON with upstream's names."""
    members: dict[str, object] = {
        "id": event.event_id,
        "source": event.source,
        "component": event.component,
        "type": event.type,
        "trigger_time_us": event.trigger_time_us,
    }
    for name, value in event.fields().items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            members[name] = [_short(element) if isinstance(element, str) else element for element in value[:MAX_ELEMENTS]]
            if len(value) > MAX_ELEMENTS:
                members[f"{name}_count"] = len(value)
        else:
            members[name] = _short(value) if isinstance(value, str) else value
    return json.dumps(members, separators=(",", ":"))


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}..."
