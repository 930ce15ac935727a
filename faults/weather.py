"""The network between managers and one store, on a loop of its own in a thread: it can drop connections, be slow, or go silent."""

from __future__ import annotations

from collections.abc import Callable

from faults.own_loop import OwnLoop
from kvcm.etcd.testing_proxy import TcpProxy


class Weather(OwnLoop):
    """`with Weather(redis.port) as weather:` forwards `weather.port`. May be called from any thread."""

    def __init__(self, target: int) -> None:
        super().__init__("weather")
        self._target = target
        self._proxy: TcpProxy | None = None
        self.port = 0

    def drop(self) -> None:
        """Cut every connection there is."""
        self._call(lambda proxy: proxy.drop())

    def refuse(self) -> None:
        """Cut every connection, and new ones at once."""

        def change(proxy: TcpProxy) -> None:
            proxy.refusing = True
            proxy.drop()

        self._call(change)

    def slow(self, seconds: float) -> None:
        """Every answer comes so much later."""
        self._call(lambda proxy: setattr(proxy, "delay_s", seconds))

    def silent(self) -> None:
        """Half open: connections stay, new ones are made, and nothing passes either way."""
        self._call(lambda proxy: setattr(proxy, "silent", True))

    def clear(self) -> None:
        """All is well for new connections; those on which something was swallowed are of no use any more, and are cut."""

        def change(proxy: TcpProxy) -> None:
            cut = proxy.silent
            proxy.silent = proxy.refusing = False
            proxy.delay_s = 0.0
            if cut:
                proxy.drop()

        self._call(change)

    async def _open(self) -> None:
        self._proxy = await TcpProxy(self._target).__aenter__()
        self.port = int(self._proxy.address.rpartition(":")[2])

    async def _close(self) -> None:
        if self._proxy is not None:
            await self._proxy.__aexit__(None, None, None)

    def _call(self, change: Callable[[TcpProxy], None]) -> None:
        async def run() -> None:
            assert self._proxy is not None
            change(self._proxy)

        self._run(run())
