"""Who led when: what watches of pods and of the leader Service's endpoints have shown, and what the managers' logs say.

Times are this machine's clock (time.time): all nodes of the test bed are this machine, so a manager's log and a watch can be compared. Danger: a
watch brings news late on a busy machine, so what is measured is an upper bound.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime

from e2e.cluster.handle import Cluster
from e2e.cluster.waiting import eventually
from e2e.support.kube import Json, Kube, Seen
from e2e.support.watches import Watches

ROLE, EPOCH = "kvcm.io/role", "kvcm.io/leader-epoch"
_TURN = re.compile(r"time=(\S+) .*node \S+: (follower -> promoting|promoting -> leader) \(epoch (\d+)\)")


@dataclass(frozen=True, slots=True)
class Term:
    """One leader's time. All times are seconds since the epoch; `won_at`: the election, `serving_at`: recovered and answering (both from its log)."""

    epoch: int
    pod: str
    uid: str
    won_at: float
    serving_at: float
    labelled_at: float
    service_at: float

    def __str__(self) -> str:
        serving, labelled, service = (f"{at - self.won_at:.2f}" for at in (self.serving_at, self.labelled_at, self.service_at))
        return f"{self.pod} won at {clock(self.won_at)}, served {serving} s later, bore the label {labelled} s and the Service led to it {service} s later"


@dataclass(frozen=True, slots=True)
class PodEvent:
    """`type`: as in a watch."""

    at: float
    type: str
    name: str
    uid: str


class Leadership(Watches):
    """Recording begins with the block and ends with it. `service`: the leader Service; `selector`: labels of the managers' pods."""

    def __init__(self, cluster: Cluster, kube: Kube, namespace: str, service: str, selector: dict[str, str]) -> None:
        super().__init__(kube, [("Pod", namespace), ("Endpoints", namespace)])
        self._cluster = cluster
        self._namespace = namespace
        self._service = service
        self._selector = selector
        self._pods: list[PodEvent] = []
        self._labelled: dict[int, tuple[float, str, str]] = {}
        self._endpoints: list[tuple[float, tuple[str, ...]]] = []

    def epochs(self) -> list[int]:
        """Of all leaders that were seen, in the order of their terms."""
        with self._lock:
            return sorted(self._labelled)

    def term_after(self, epoch: int, *, seconds: float) -> Term:
        """The newest term that is younger than `epoch`, once the Service leads to its pod alone. BedError when that does not come about in time."""

        def found() -> tuple[int, float, str, str, float] | None:
            with self._lock:
                newest = max(self._labelled, default=0)
                if newest <= epoch:
                    return None
                labelled_at, pod, uid = self._labelled[newest]
                led = [at for at, uids in self._endpoints if uids == (uid,) and at >= labelled_at - 1]
                current = self._endpoints and self._endpoints[-1][1] == (uid,)
            return (newest, labelled_at, pod, uid, led[0]) if led and current else None

        number, labelled_at, pod, uid, service_at = eventually(
            found, f"another leader than that of epoch {epoch}, and the Service leads to it", seconds=seconds
        )
        turns = eventually(lambda: self._turns(pod, number), f"the log of {pod} tells of epoch {number}", seconds=10)
        return Term(number, pod, uid, turns["follower -> promoting"], turns["promoting -> leader"], labelled_at, service_at)

    def pods_since(self, moment: float, type: str) -> list[PodEvent]:
        """Managers' pods that came or went (ADDED, DELETED) since then, in order."""
        with self._lock:
            return [event for event in self._pods if event.at >= moment and event.type == type]

    def _turns(self, pod: str, epoch: int) -> dict[str, float] | None:
        log = self._cluster.kubectl("-n", self._namespace, "logs", pod)
        found = {match[2]: _seconds(match[1]) for match in _TURN.finditer(log) if int(match[3]) == epoch}
        return found if len(found) == 2 else None

    def _keep(self, seen: Seen) -> None:
        now, meta = time.time(), seen.body["metadata"]
        with self._lock:
            if seen.body["kind"] == "Endpoints":
                if meta["name"] == self._service:
                    self._endpoints.append((now, _behind(seen.body)))
                return
            labels = meta.get("labels") or {}
            if not self._selector.items() <= labels.items():
                return
            if seen.type in ("ADDED", "DELETED"):
                self._pods.append(PodEvent(now, seen.type, meta["name"], meta["uid"]))
            epoch = (meta.get("annotations") or {}).get(EPOCH)
            if labels.get(ROLE) == "leader" and epoch and seen.type != "DELETED":
                self._labelled.setdefault(int(epoch), (now, meta["name"], meta["uid"]))


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at)) + f"{at % 1:.2f}"[1:]


def _behind(endpoints: Json) -> tuple[str, ...]:
    """The uids of the pods that the Service leads to now."""
    subsets = endpoints.get("subsets") or []
    return tuple(sorted(address["targetRef"]["uid"] for subset in subsets for address in subset.get("addresses") or []))


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
