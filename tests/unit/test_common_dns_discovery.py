"""Members by DNS: refresh rules on a scripted look-up, addresses by the machine's resolver, SRV records from a small name server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import dns.message
import dns.resolver
import dns.rrset
import pytest

from kvcm.client.errors import InvalidClientConfig
from kvcm.client.seeds import Seeds
from kvcm.common.dns_discovery import DnsDiscovery, services_of
from kvcm.common.errors import InvalidArgument, NotReady
from kvcm.common.service_discovery import ServiceEndpoint, open_discovery

pytestmark = pytest.mark.unit
A, B = ServiceEndpoint("10.0.0.1", 1), ServiceEndpoint("10.0.0.2", 1)


class Script:
    """Answers look-ups from `members`; OSError while it is None. Waits at `gate`."""

    def __init__(self, *members: ServiceEndpoint) -> None:
        self.members: tuple[ServiceEndpoint, ...] | None = members
        self.asked = 0
        self.now = 100.0
        self.gate = threading.Event()
        self.gate.set()
        self.found = DnsDiscovery("dns", "dns://x", self._look_up, 5, now=lambda: self.now)

    def _look_up(self) -> tuple[ServiceEndpoint, ...]:
        self.asked += 1
        assert self.gate.wait(5)
        if self.members is None:
            raise socket.gaierror(-2, "unknown")
        return self.members


def test_a_young_list_is_used_as_it_is_and_an_old_one_looked_up_again() -> None:
    script = Script(A, B, A)
    assert script.found.get_all() == ()
    with pytest.raises(NotReady, match="dns://x"):
        script.found.get_one()
    assert script.found.due()
    assert script.found.refresh()
    assert script.found.get_all() == (A, B)
    assert [script.found.get_one() for _ in range(4)] == [A, B, A, B]
    script.now += 4.9
    assert not script.found.due()
    assert script.found.refresh()
    assert script.asked == 1
    script.members = (B,)
    script.now += 0.2
    assert script.found.refresh()
    assert script.found.get_all() == (B,)
    assert script.asked == 2


@pytest.mark.parametrize("nothing", [None, ()])
def test_I_SD_2_a_failed_refresh_keeps_the_last_good_list_and_is_tried_again_soon(nothing: tuple[ServiceEndpoint, ...] | None) -> None:
    script = Script(A)
    script.found.refresh()
    script.members = nothing
    script.now += 5
    assert not script.found.refresh()
    assert script.found.get_all() == (A,)
    assert not script.found.refresh()  # not at once
    assert script.asked == 2
    script.now += 0.5
    script.members = (A, B)
    assert script.found.refresh()
    assert script.found.get_all() == (A, B)


def test_I_SD_3_a_look_up_that_hangs_holds_nobody_up_and_runs_once() -> None:
    script = Script(A)
    script.found.refresh()
    script.now += 5
    script.gate.clear()
    assert script.found.refresh(0.01)  # the list of before is still good
    assert script.found.get_one() == A
    script.members = (B,)
    assert script.found.refresh(0.01)
    script.gate.set()
    assert script.found.refresh(5)
    while script.found.get_all() != (B,):
        script.found.refresh(5)
    assert script.asked == 2


def test_addresses_come_from_the_machines_resolver() -> None:
    found = open_discovery("dns://localhost:6381?ttl=1")
    assert found.type == "dns"
    assert found.get_all() == ()
    assert found.refresh()
    assert "127.0.0.1:6381" in [member.host for member in found.get_all()]
    assert not open_discovery("dns://no-such-name.invalid:1").refresh()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("dns://:1", "one DNS name"),
        ("dns://a..b:1", "one DNS name"),
        ("dns://a,b:1", "one DNS name"),
        ("dns://a", "needs its port"),
        ("dns://a:0", "port from 1"),
        ("dns://a:1?ttl=0", "from 1 to 300"),
        ("dns://a:1?ttl=301", "from 1 to 300"),
        ("dns://a:1?speed=1", "no parameter 'speed'"),
        ("dns+srv://a:1", "one DNS name"),
        ("dns+srv://" + "a." * 200, "one DNS name"),
    ],
)
def test_urls_that_break_a_rule(url: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        open_discovery(url)
    with pytest.raises(InvalidClientConfig):
        Seeds([url], 0)


def test_seeds_are_addresses_and_lists_mixed() -> None:
    seeds = Seeds(["m:1", "static://a:2,b:3", "dns://localhost", "m:1"])
    assert seeds.all() == ("m:1", "a:2", "b:3")
    assert seeds.due()
    seeds.refresh(5)
    assert "127.0.0.1:6381" in seeds.all()
    assert not seeds.due()
    for bad in ("m", "m:0", "http://m:1", ":1"):
        with pytest.raises(InvalidClientConfig):
            Seeds([bad])


@pytest.fixture
def name_server() -> Iterator[Callable[..., dns.resolver.Resolver]]:
    """A resolver that asks a name server on this machine, which answers with these SRV records."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    records: list[str] = []

    def serve() -> None:
        while True:
            data, peer = sock.recvfrom(4096)
            if data == b"end":
                return
            query = dns.message.from_wire(data)
            reply = dns.message.make_response(query)
            if records:
                reply.answer.append(dns.rrset.from_text(query.question[0].name, 5, "IN", "SRV", *records))
            sock.sendto(reply.to_wire(), peer)

    thread = threading.Thread(target=serve)
    thread.start()

    def make(*texts: str) -> dns.resolver.Resolver:
        records[:] = texts
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], sock.getsockname()[1]
        return resolver

    yield make
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.sendto(b"end", sock.getsockname())
    thread.join()
    sock.close()


def test_srv_records_name_hosts_and_ports_best_first(name_server: Callable[..., dns.resolver.Resolver]) -> None:
    resolver = name_server("10 5 6381 m-1.nodes.", "0 1 7001 m-0.nodes.", "10 50 6382 m-2.nodes.", "10 1 1 .")
    look_up = services_of("_meta._tcp.kvcm.ns.", resolver)
    assert [member.host for member in look_up()] == ["m-0.nodes:7001", "m-2.nodes:6382", "m-1.nodes:6381"]
    found = DnsDiscovery("dns+srv", "dns+srv://x", look_up)
    assert found.refresh()
    assert found.get_one().weight == 1
    empty = DnsDiscovery("dns+srv", "dns+srv://x", services_of("_meta._tcp.kvcm.ns.", name_server()))
    assert not empty.refresh()
    assert open_discovery("dns+srv://_meta._tcp.kvcm.ns").type == "dns+srv"
