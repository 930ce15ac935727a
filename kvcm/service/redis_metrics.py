"""Numbers about block metadata in Redis: writes, what waits behind, recoveries under way (behaviour 9.4, 9.9)."""

from __future__ import annotations

from collections.abc import Iterable

from kvcm.meta.redis_context import RedisContext
from kvcm.metrics import catalogue
from kvcm.metrics.families import AnyFamily


class RedisSource:
    def __init__(self, context: RedisContext) -> None:
        self._context = context

    def families(self) -> Iterable[AnyFamily]:
        stats, now = self._context.stats, self._context.monotonic_us()
        yield catalogue.META_CONNECTIONS.only(stats.connections)
        yield catalogue.META_BATCHES.only(stats.batches)
        yield catalogue.META_BLOCKS.only(stats.blocks)
        yield catalogue.META_FAILURES.of([(("refused",), stats.failures), (("unknown",), stats.unknown), (("fenced",), stats.fenced)])
        yield catalogue.META_LOADED.only(stats.loaded)
        yield catalogue.META_DAMAGED.only(stats.damaged)
        # Of all instances together: their number has no bound.
        done, found = (sum(counts[at] for counts in stats.loading.values()) for at in (0, 1))
        yield catalogue.META_LOADING.of([(("found",), found), (("done",), done)])
        waiting = [(count, since) for count, since in stats.behind.values() if count]
        yield catalogue.META_BEHIND.only(sum(count for count, _ in waiting))
        yield catalogue.META_BEHIND_AGE.only(max((now - since for _, since in waiting if since), default=0) // 1000)
        yield catalogue.META_BEHIND_LOST.only(stats.dropped)
