"""Ports for test servers: nobody else gets them."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvcm.common import testing_ports
from kvcm.common.errors import NotReady
from kvcm.common.testing_ports import below_ephemeral, free_port, free_ports, ports_in_a_row

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FOLDERS = ("kvcm", "operator", "e2e", "tests", "benchmarks", "faults")


def test_ports_are_different_and_below_those_of_outgoing_connections() -> None:
    ports = [*free_ports(20), free_port(), *ports_in_a_row(4)]
    assert len(set(ports)) == 25
    assert set(ports) <= set(below_ephemeral())
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    assert below_ephemeral().stop <= low or low < 12_000


def test_ports_in_a_row_follow_each_other_and_keep_the_one_above() -> None:
    first, second, third = ports_in_a_row(3, also=3000)
    assert (second, third) == (first + 1, first + 2)
    assert second + 3000 in testing_ports._given


def test_what_one_process_has_no_other_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is not listened on yet, which is the moment that a mere look cannot see."""
    port = free_port()
    program = (
        "from kvcm.common import testing_ports as p\n"
        "from kvcm.common.errors import NotReady\n"
        f"p.below_ephemeral = lambda: range({port}, {port + 1})\n"
        "try:\n    print(p.free_port())\nexcept NotReady:\n    print('none')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert done.stdout.split() == ["none"]
    monkeypatch.setattr(testing_ports, "below_ephemeral", lambda: range(port, port + 1))
    with pytest.raises(NotReady):
        free_port()


def test_a_port_that_is_listened_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(testing_ports, "_given", set())
    monkeypatch.setattr(testing_ports, "below_ephemeral", lambda: range(port, port + 1))
    with socket.create_server(("127.0.0.1", port)), pytest.raises(NotReady):
        free_port()


def test_nobody_else_chooses_ports_for_servers_that_start_later() -> None:
    """Binding 0, closing and handing the number on is a race that this module ends; a socket that stays open while it is used is fine."""
    chooser = re.compile(r"def (\w*free_ports?|consecutive_ports)\b")
    found = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "site-packages" not in path.parts and chooser.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"kvcm/common/testing_ports.py", "e2e/cluster/process.py"}  # the second has a range of its own
