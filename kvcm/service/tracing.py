"""The span tree of one call that asked for it (wire contract 3.5): its `trace_id` ends with `__kvcm_need_span_tracer`.

A call that does not ask pays one look at its trace_id. One that asks is run on a service whose manager is watched: every call into the manager becomes a
span. `tracer_result` is JSON, a node being `{"span_time_us": N, "<name>": [children]}`; names are `<module>:<function>` of this implementation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import Message

if TYPE_CHECKING:
    from kvcm.service.rpc import Call, Handler, Reply, Rpc

MAX_SPANS: Final = 200
T = TypeVar("T")
_Node = dict[str, Any]


class Tracer:
    """`now`: microseconds. Spans nest as they are opened, so a handler must not open two side by side; those beyond MAX_SPANS are left out."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._started = now()
        self._roots: list[_Node] = []
        self._open: list[list[_Node]] = [self._roots]
        self._count = 0

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        if self._count >= MAX_SPANS:
            yield
            return
        self._count += 1
        children: list[_Node] = []
        node: _Node = {"span_time_us": 0, name: children}
        self._open[-1].append(node)
        self._open.append(children)
        started = self._now()
        try:
            yield
        finally:
            node["span_time_us"] = self._now() - started
            self._open.pop()

    def watch(self, target: T) -> T:
        """Something that behaves like `target` and opens a span for each call of its methods."""
        return _Watched(target, self)  # type: ignore[return-value]  # it has whatever the target has

    def text(self, trace_id: str) -> str:
        return json.dumps({"span_time_us": self._now() - self._started, f"{trace_id}:{trace_id}": self._roots}, separators=(",", ":"))


class _Watched:
    def __init__(self, target: object, tracer: Tracer) -> None:
        self._target = target
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found
        label = _label(found, name)
        tracer = self._tracer
        if iscoroutinefunction(found):

            async def later(*args: Any, **kwargs: Any) -> Any:
                with tracer.span(label):
                    return await found(*args, **kwargs)

            return later

        def now(*args: Any, **kwargs: Any) -> Any:
            with tracer.span(label):
                return found(*args, **kwargs)

        return now


def traceable(rpc: Rpc, make: Callable[[Tracer], Mapping[str, Handler]]) -> Rpc:
    """The RPC, ready to be traced: `make(tracer)` gives the handlers, by RPC, of a service whose parts are watched."""
    label = _label(rpc.handler, rpc.name)

    def traced(tracer: Tracer) -> Handler:
        handler = make(tracer)[rpc.name]

        async def handle(request: Any, call: Call) -> Reply:
            with tracer.span(label):
                return await handler(request, call)

        return handle

    return replace(rpc, traced=traced)


def tracer_suffix(response_cls: type[Message], text: str) -> bytes:
    """Bytes that put `tracer_result` into a reply when they stand behind it: a second header is merged into the first one."""
    response: Any = response_cls()
    response.header.tracer_result = text
    return bytes(response.SerializeToString())


def _label(function: Any, name: str) -> str:
    return f"{getattr(function, '__module__', '').replace('.', '/')}.py:{name}"
