"""Watches of an API server that run beside a story, each in a thread, and what ended one before its time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from e2e.support.kube import Kube, Seen, Watch

_JOIN_S = 10.0


class Watches(ABC):
    """Recording begins with the block and ends with it. `wanted`: kind and namespace of each watch; `_keep` gets what they show, first what is there."""

    def __init__(self, kube: Kube, wanted: Iterable[tuple[str, str]]) -> None:
        self._kube = kube
        self._wanted = list(wanted)
        self._lock = threading.Lock()
        self._watches: list[Watch] = []
        self._threads: list[threading.Thread] = []
        self._broken: list[BaseException] = []
        self._ending = False

    def __enter__(self) -> Self:
        try:
            for kind, namespace in self._wanted:
                version, there = self._kube.version(kind, namespace)
                for body in there:
                    self._keep(Seen("ADDED", {**body, "kind": kind}))
                watch = self._kube.watch(kind, namespace, version)
                self._watches.append(watch)
                thread = threading.Thread(target=self._follow, args=(watch,), name=f"watch-{kind}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    @property
    def broken(self) -> list[BaseException]:
        """Why a watch has ended before its time: then nothing here can be trusted."""
        with self._lock:
            return list(self._broken)

    @abstractmethod
    def _keep(self, seen: Seen) -> None:
        """Called by several threads."""

    def _follow(self, watch: Watch) -> None:
        try:
            for seen in watch:
                self._keep(seen)
            if not self._ending:
                raise EOFError("the API server ended it")
        except BaseException as error:
            if not self._ending:
                with self._lock:
                    self._broken.append(error)

    def _end(self) -> None:
        self._ending = True
        for watch in self._watches:
            watch.close()
        for thread in self._threads:
            thread.join(_JOIN_S)
