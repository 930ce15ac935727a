"""The bed's own corner of the machine: a network, a process table and a mount table that end with one process.

Bridges, iptables rules, network sysctls, mounts and every process of a node live in these namespaces; when the first process in them
ends, by our hand or by any other, the kernel takes all of it away. What is left for the machine is one link, and folders in the cgroup
file system, both in the journal. The kernel settings that a kubelet insists on are shown to it by files mounted over them, so the
machine's own never change.
"""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import BedError
from e2e.cluster.process import Starter, children
from e2e.cluster.settings import BED_IP, DNS_IP, HOST_IP, LINK, NODE_NET, POD_NET, SERVICE_NET, node_ip

_IP_TIMEOUT_S = 30.0
_WAIT_S = 30.0
_INNER_LINK = "host0"
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
_UNIFIED = "unified"
CGROUP_PREFIX = "kvcm-e2e-"


def cgroup_mounts(mountinfo: str) -> dict[str, Path]:
    """Controller to mount point of the cgroup v1 hierarchies in the text of /proc/self/mountinfo; a v2 hierarchy beside them is `unified`."""
    found: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split()
        mount = Path(before.split()[4]) if before else Path("/")
        if kind and kind[0] == "cgroup2":
            found[_UNIFIED] = mount
        if kind and kind[0] == "cgroup":
            for option in kind[2].split(","):
                if option not in {"rw", "ro"}:
                    found[option] = mount
    return found


def refuse_if_taken() -> None:
    """BedError if another bed's link is up, or if the machine has a route into the addresses that the bed uses."""
    links = json.loads(run(["ip", "-j", "link", "show"], timeout=_IP_TIMEOUT_S))
    for link in links:
        if link.get("ifname") == LINK:
            where = link.get("ifalias") or "a run folder that the link does not name"
            raise BedError(f"another test cluster is up on this machine (its link {LINK} exists, run folder: {where}); take it down first")
    routes = json.loads(run(["ip", "-j", "-4", "route", "show"], timeout=_IP_TIMEOUT_S))
    ours = [ip_network(network, strict=False) for network in (NODE_NET, POD_NET, SERVICE_NET, f"{HOST_IP}/30")]
    for route in routes:
        if route["dst"] == "default":
            continue
        theirs = ip_network(route["dst"], strict=False)
        if any(theirs.overlaps(network) for network in ours):
            raise BedError(f"this machine has a route of its own to {theirs}, which overlaps with the addresses of the test cluster")


class Space:
    """`holder` is the pid of the first process inside."""

    def __init__(self, starter: Starter, pause: Path) -> None:
        self._starter = starter
        self._pause = pause
        self._run = starter.journal.run
        self.holder = 0

    def open(self, nodes: int) -> None:
        """Make the namespaces and the link to them. BedError if that does not work here."""
        marker = self._run / "space.ready"
        argv = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]
        door = self._starter.start("space", [*argv, "/bin/sh", "-ec", self._script(nodes, marker)])
        self._starter.wait("space", _WAIT_S, marker.is_file, "the namespaces of the bed are ready")
        self.holder = self._first_process(door)
        self._starter.journal.add_process("space:first", self.holder)
        self._join_host()

    def _first_process(self, door: int) -> int:
        inside = children(door)
        if len(inside) != 1:
            raise BedError("the first process of the bed's namespaces is not to be found")
        return inside[0]

    def _script(self, nodes: int, marker: Path) -> str:
        settings = self._run / "kernel"
        settings.mkdir(exist_ok=True)
        lines = ["mount -t tmpfs -o mode=755 tmpfs /run", "mkdir -p /run/lock"]
        for name, value in _KERNEL_SETTINGS.items():
            file = settings / name.replace("/", "-")
            file.write_text(value + "\n", encoding="ascii")
            lines.append(f"[ ! -e /proc/sys/{name} ] || mount --bind '{file}' /proc/sys/{name}")
        lines += ["ip link set lo up", "ip link add nodes0 type bridge"]
        for address in (DNS_IP, *(node_ip(number) for number in range(1, nodes + 1))):
            lines.append(f"ip addr add {address}/24 dev nodes0")
        lines += ["ip link set nodes0 up", "echo 1 >/proc/sys/net/ipv4/ip_forward"]
        lines.append("echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables")
        lines += [f"touch '{marker}'", f"exec '{self._pause}'"]
        return "\n".join(lines)

    def _join_host(self) -> None:
        self._starter.journal.add("link", LINK)
        self._ip(f"link add {LINK} type veth peer name {_INNER_LINK} netns {self.holder}")
        run(["ip", "link", "set", "dev", LINK, "alias", self._run], timeout=_IP_TIMEOUT_S)
        self._ip(f"addr add {HOST_IP}/30 dev {LINK}")
        self._ip(f"link set {LINK} up")
        inside = ["nsenter", "-t", str(self.holder), "-n", "ip"]
        run([*inside, "addr", "add", f"{BED_IP}/30", "dev", _INNER_LINK], timeout=_IP_TIMEOUT_S)
        run([*inside, "link", "set", _INNER_LINK, "up"], timeout=_IP_TIMEOUT_S)
        for network in (NODE_NET, POD_NET, SERVICE_NET):
            self._ip(f"route add {network} via {BED_IP} dev {LINK}")

    def _ip(self, words: str) -> None:
        run(["ip", *words.split()], timeout=_IP_TIMEOUT_S)

    def make_cgroups(self, name: str) -> None:
        """A cgroup of this name in each v1 hierarchy, with all the processors and memory of its parent.

        A v2 hierarchy beside them has none at first, but runc makes its cgroups there too, so the journal names it.
        """
        mounts = cgroup_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        for mount in sorted(set(mounts.values())):
            folder = mount / f"{CGROUP_PREFIX}{name}"
            self._starter.journal.add("cgroup", str(folder))
            if mount == mounts.get(_UNIFIED):
                continue
            folder.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (mount / file).is_file():
                    (folder / file).write_text((mount / file).read_text(encoding="ascii"), encoding="ascii")
