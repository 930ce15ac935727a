"""A grpc.aio server that no request path can stop, and no request that never comes.

grpc.aio decodes the path of a call inside the loop that accepts calls. One path that is not UTF-8, from anybody, ends that loop and with it the server: the
port closes while the process goes on. Here such a call is dropped before the loop sees it. The loop treats the error that stands for it as it treats a
call that went away before it was accepted, and goes on. Calls that are accepted are handed to `unsent.py`.

Danger: the path is not visible to Python, so it is asked for through the extension's own table of functions. That is done only for versions of grpcio in
which it was tried; with any other, `new_server` gives the plain server, and the listener starts it again when it has ended.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc import aio
from grpc._cython import cygrpc
from grpc.aio import _server as aio_server

from kvcm.service.grpc.unsent import Unsent

TRIED_VERSIONS = frozenset({"1.85.3"})
_log = logging.getLogger("kvcm.service.grpc")
_cython: Any = cygrpc
_PlainServer: Any = aio_server.Server


def new_server(handlers: Sequence[Any], options: Sequence[tuple[str, Any]], maximum_concurrent_rpcs: int) -> Any:
    """As `grpc.aio.server`. Call it on the loop that serves."""
    if path_reader() is None:
        _log.warning("grpcio %s is not known to survive malformed paths here; a listener that ends is started again", grpc.__version__)
        return aio.server(handlers=handlers, options=options, maximum_concurrent_rpcs=maximum_concurrent_rpcs)
    return _Server(handlers, options, maximum_concurrent_rpcs)


def path_reader() -> Callable[[Any], bytes] | None:
    """What reads the path of a call that has just been requested; None when this grpcio is not one that was tried."""
    if grpc.__version__ not in TRIED_VERSIONS:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = ctypes.cast(pointer(_cython.RPCState.__pyx_vtable__, None), ctypes.POINTER(ctypes.c_void_p))
    # The first one is RPCState.method: a call's path as bytes.
    address = functions[0]
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address) if address else None


def quieten_strangers() -> None:
    """grpc.aio logs a traceback for each header name that is not UTF-8, and a line for each call refused; strangers do not get to fill the log. Idempotent.

    What its core writes to stderr is switched off in `kvcm.cli`.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    # The second is how grpc.aio takes our refusal of a call whose request does not come.
    return not str(record.msg).startswith(("Invalid encoding on", "Abort error unexpectedly suppressed"))


class _Core(_cython.AioServer):  # type: ignore[misc]  # no types for the extension
    """The part of grpc.aio that accepts calls."""

    def watch(self) -> None:
        reader = path_reader()
        if reader is None:
            raise ValueError("only for versions that were tried")
        self._path_of = reader
        self._unsent = Unsent(_cython.get_working_loop())

    async def _request_call(self) -> Any:
        call = await super()._request_call()
        path = self._path_of(call)
        # As the loop of grpc.aio will decode it.
        if not path.isascii() and not _is_text(path):
            raise _cython._RequestCallError("a path that is not UTF-8")
        self._unsent.add(call)
        return call


class _Server(_PlainServer):  # type: ignore[misc]  # no types for it
    def __init__(self, handlers: Sequence[Any], options: Sequence[tuple[str, Any]], maximum_concurrent_rpcs: int) -> None:
        # Not that of the base class, which would make a core of its own.
        self._loop = _cython.get_working_loop()
        self._server = _Core(self._loop, None, list(handlers), (), tuple(options), maximum_concurrent_rpcs)
        self._server.watch()


def _is_text(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True
