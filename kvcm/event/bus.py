"""The event bus (behaviour 17.2): every event goes to every publisher, each with a bounded queue of its own.

Publishing never waits and never fails the request, however a publisher is doing (I-EV-1, I-EV-4). A publisher's events keep their order (I-EV-2), and for
each, published = queued + delivered + dropped (I-EV-3). It belongs to one loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from kvcm.common.handoff import Handoff
from kvcm.event.model import Event, event_line
from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily

LOGGER: Final = "kvcm.event.log"
_MAX_WAITING_BYTES: Final = 64 << 20
_log = logging.getLogger("kvcm.event.bus")


class Publisher(Protocol):
    """`offer` must be quick: it keeps the event or drops it. The four numbers obey I-EV-3."""

    @property
    def name(self) -> str:
        """A word of ours; it becomes a label."""
        ...

    @property
    def offered(self) -> int: ...

    @property
    def delivered(self) -> int: ...

    @property
    def dropped(self) -> int: ...

    @property
    def queued(self) -> int: ...

    def offer(self, event: Event) -> None: ...

    def close(self) -> None:
        """Deliver what waits, in bounded time."""
        ...


class EventManager:
    """Without publishers, `enabled` is False and nobody should build an event."""

    def __init__(self, publishers: Iterable[Publisher] = ()) -> None:
        self._publishers = tuple(publishers)
        self._complained: set[str] = set()

    @property
    def enabled(self) -> bool:
        return bool(self._publishers)

    def add(self, publisher: Publisher) -> None:
        self._publishers = (*self._publishers, publisher)

    def publish(self, event: Event) -> None:
        """Never waits, never raises."""
        for publisher in self._publishers:
            try:
                publisher.offer(event)
            except Exception:
                if publisher.name not in self._complained:
                    self._complained.add(publisher.name)
                    _log.exception("publisher_failed publisher=%s: an event was lost; later ones are lost without another word", publisher.name)

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()
        self._publishers = ()

    def families(self) -> Iterable[AnyFamily]:
        counted = [((publisher.name,), publisher) for publisher in self._publishers]
        yield catalogue.EVENTS_PUBLISHED.of([(labels, publisher.offered) for labels, publisher in counted])
        yield catalogue.EVENTS_DELIVERED.of([(labels, publisher.delivered) for labels, publisher in counted])
        yield catalogue.EVENTS_DROPPED.of([(labels, publisher.dropped) for labels, publisher in counted])
        yield catalogue.EVENTS_QUEUED.of([(labels, publisher.queued) for labels, publisher in counted])


class LogPublisher:
    """JSON lines, made and handed to `write` in a thread."""

    name = "log"

    def __init__(self, write: Callable[[Sequence[str]], None], queue_size: int) -> None:
        self._write = write
        self._handoff: Handoff[Event] = Handoff("kvcm-event-log", self._deliver, queue_size, _MAX_WAITING_BYTES)

    @property
    def offered(self) -> int:
        return self._handoff.offered

    @property
    def delivered(self) -> int:
        return self._handoff.delivered

    @property
    def dropped(self) -> int:
        return self._handoff.dropped

    @property
    def queued(self) -> int:
        return self._handoff.queued

    def offer(self, event: Event) -> None:
        self._handoff.offer(event, event.weight)

    def close(self) -> None:
        self._handoff.close()

    def _deliver(self, events: Sequence[Event]) -> None:
        self._write([event_line(event) for event in events])
