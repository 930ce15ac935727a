"""One thing that happened, for whoever publishes it (behaviour 17.1). What it says in detail is worked out only when it is delivered."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MAX_ELEMENTS: Final = 16_384
"""A list in an event's text has at most so many elements; `<name>_count` then says how many there were."""


@dataclass(frozen=True, slots=True)
class Event:
    """`event_id`: 32 characters. `source`: the instance id. `weight`: about how many keys and tokens it keeps alive while it waits.
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
            members[name] = list(value[:MAX_ELEMENTS])
            if len(value) > MAX_ELEMENTS:
                members[f"{name}_count"] = len(value)
        else:
            members[name] = value
    return json.dumps(members, separators=(",", ":"))
