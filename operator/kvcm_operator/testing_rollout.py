"""A model of a manager with several pods, for trying out the planner without any object of Kubernetes: a StatefulSet's controller, pods, and an election.

`step` is one moment of the cluster, `operate` one pass of the operator (the order of reconcile_manager). What others do is done by the test. Every pod tells
exactly what it knows of itself, and of others what it saw at its last look (`lagging` ones do not look).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcm.client.admin_types import ClusterInfo, NodeEndpoint, NodeRole, NodeState
from kvcm_operator.rollout import Plan, plan
from kvcm_operator.rollout_fleet import Fleet, Node
from kvcm_operator.rollout_handover import Handover
from kvcm_operator.rollout_leader import Leadership, aged, leadership
from kvcm_operator.scale import size
from kvcm_operator.subject import timestamp
from kvcm_operator.world import Json

NAME = "demo"
_START_US = 1_700_000_000_000_000


@dataclass(slots=True)
class ModelPod:
    """`revision`: of its template. `broken`: it never becomes ready. `follows`: it never stands for election. `cold`: it could not take over at once.

    `stuck`: it may lead and never serves.
    """

    ordinal: int
    revision: int
    uid: int
    ready: bool = False
    stopping: bool = False
    broken: bool = False
    follows: bool = False
    silent: bool = False
    lagging: bool = False
    cold: bool = False
    stuck: bool = False
    kept_out_until_us: int = 0
    view: tuple[str, int] = ("", 0)

    @property
    def name(self) -> str:
        return f"{NAME}-{self.ordinal}"


@dataclass(slots=True)
class ModelCluster:
    """`deleted`: what the operator deleted, in order, as (pod, did it lead). `demoted`: whom it asked. `bad`: revisions that do not work."""

    wanted: int
    pods: dict[int, ModelPod] = field(default_factory=dict)
    size: int = 0
    revision: int = 1
    seen: bool = True
    leader: str = ""
    epoch: int = 0
    serves: bool = False
    wall_us: int = _START_US
    bad: set[int] = field(default_factory=set)
    memory: Handover | None = None
    deleted: list[tuple[str, bool]] = field(default_factory=list)
    demoted: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    status: Json = field(default_factory=lambda: {"leader": {"pod": "", "epoch": 0, "since": ""}})
    _uids: int = 0

    @classmethod
    def settled(cls, replicas: int, leader: int = 0) -> ModelCluster:
        """All pods ready, of revision 1, and one of them leading."""
        model = cls(wanted=replicas, size=replicas)
        model.step()
        for pod in model.pods.values():
            pod.ready = True
        model.elect(leader)
        model.step()
        return model

    # -- the cluster ---------------------------------------------------------------------------------------------------------------------------

    def step(self, seconds: float = 1.0) -> None:
        self.wall_us += round(seconds * 1e6)
        self.seen = True
        for ordinal in [ordinal for ordinal, pod in self.pods.items() if pod.stopping]:
            self._lose(self.pods.pop(ordinal).name)
        for pod in self.pods.values():
            pod.stopping = pod.stopping or pod.ordinal >= self.size
            pod.ready = not (pod.broken or pod.stopping or pod.revision in self.bad)
        for ordinal in range(self.size):
            if ordinal not in self.pods:
                self._uids += 1
                self.pods[ordinal] = ModelPod(ordinal, self.revision, self._uids)
        self._vote()
        for pod in self.pods.values():
            if not pod.lagging:
                pod.view = (self.leader, self.epoch) if self.leader else ("", 0)

    def elect(self, ordinal: int) -> None:
        """Whatever was before: this pod leads and serves."""
        self.leader, self.epoch, self.serves = self.pods[ordinal].name, self.epoch + 1, True

    def depose(self) -> None:
        self.leader, self.serves = "", False

    def crash(self, ordinal: int) -> None:
        """The container ends and starts again."""
        self.pods[ordinal].ready = False
        self._lose(self.pods[ordinal].name)

    def remove(self, ordinal: int) -> None:
        """Somebody deletes a pod."""
        self.pods[ordinal].stopping = True
        self.pods[ordinal].ready = False

    def change(self) -> None:
        """The spec wants another template."""
        self.revision += 1
        self.seen = False

    def _lose(self, name: str) -> None:
        if self.leader == name:
            self.depose()

    def _vote(self) -> None:
        if self.leader:
            self.serves = not any(pod.stuck for pod in self.pods.values() if pod.name == self.leader)
            return
        for ordinal in sorted(self.pods):
            pod = self.pods[ordinal]
            if pod.ready and not pod.follows and self.wall_us >= pod.kept_out_until_us:
                self.leader, self.epoch, self.serves = pod.name, self.epoch + 1, False
                return

    # -- the operator --------------------------------------------------------------------------------------------------------------------------

    def fleet(self) -> Fleet:
        nodes = [
            Node(pod.name, pod.ordinal, str(pod.uid), pod.name, "", pod.ready, pod.revision != self.revision, pod.stopping, "broken" if self._hurt(pod) else "")
            for pod in sorted(self.pods.values(), key=lambda pod: pod.ordinal)
        ]
        return Fleet(exists=True, size=self.size, seen=self.seen, nodes=tuple(nodes))

    def words(self) -> dict[str, ClusterInfo]:
        return {pod.name: self._word(pod) for pod in self.pods.values() if not (pod.silent or pod.stopping)}

    def operate(self, *, forgets: bool = False, demotion_lost: bool = False) -> Plan:
        """One pass. `forgets`: the operator ends before it writes what it did. `demotion_lost`: the request never arrives, and nobody knows."""
        leader: Leadership = aged(leadership(self.fleet(), self.words()), self.status, self.wall_us)
        if leader.known and (leader.pod, leader.epoch) != (self.status["leader"]["pod"], self.status["leader"]["epoch"]):
            self.status = {"leader": {"pod": leader.pod, "epoch": leader.epoch, "since": timestamp(self.wall_us)}}
        target = size(self.wanted, self.fleet(), leader).replicas
        if target != self.size:
            if target < self.size and self.wanted and self.leader and int(self.leader.rpartition("-")[2]) >= target:
                self.violations.append(f"{self.leader} leads and is stopped by a smaller size")
            self.size, self.seen = target, False
        found = self.plan = plan(self.wanted, self.fleet(), leader, self.memory, self.wall_us, {pod.name for pod in self.pods.values() if pod.cold})
        if found.replace is not None:
            self._delete(found.replace)
        if found.demote is not None and not demotion_lost:
            self.demoted.append(found.demote.name)
            pod = self.pods[found.demote.ordinal]
            if self.leader == pod.name:
                pod.kept_out_until_us = self.wall_us + 15_000_000
                self.depose()
        if not forgets:
            self.memory = found.handover
        return found

    def _delete(self, node: Node) -> None:
        pod = self.pods[node.ordinal]
        leads = self.leader == pod.name
        self.deleted.append((pod.name, leads))
        if not self.seen:
            self.violations.append(f"{pod.name} was deleted before the set knew the new template")
        others = [other for ordinal, other in self.pods.items() if ordinal != node.ordinal and ordinal < self.wanted]
        if pod.revision == self.revision:
            self.violations.append(f"{pod.name} is up to date and was deleted")
        if leads and any(not other.stopping for other in self.pods.values() if other is not pod):
            self.violations.append(f"{pod.name} leads and was deleted")
        if len(others) < min(self.wanted, self.size) - 1 or any(other.stopping for other in others):
            self.violations.append(f"{pod.name} was deleted while another was gone")
        if any(not other.ready and other.revision == self.revision for other in others):
            self.violations.append(f"{pod.name} was deleted before the last one was ready")
        if pod.ready and len(self.fleet().living) > 1 and any(other.cold and other.revision == self.revision and other.name != self.leader for other in others):
            self.violations.append(f"{pod.name} was deleted before the last one could take over at once")
        if pod.ready and any(not other.ready and other.name != self.leader for other in others):
            self.violations.append(f"{pod.name} was ready and was deleted before one that is not")
        self.remove(node.ordinal)

    def done(self) -> bool:
        same = all(pod.revision == self.revision and pod.ready for pod in self.pods.values())
        return self.plan.reason is None and same and sorted(self.pods) == list(range(self.wanted)) and self.size == self.wanted

    def _hurt(self, pod: ModelPod) -> bool:
        return not pod.ready and (pod.broken or pod.revision in self.bad)

    def _word(self, pod: ModelPod) -> ClusterInfo:
        leads = self.leader == pod.name
        known, epoch = (self.leader, self.epoch) if leads else pod.view
        if known == pod.name and not leads:
            known, epoch = "", 0
        role = (NodeRole.LEADER if self.serves else NodeRole.PROMOTING) if leads else NodeRole.FOLLOWER
        return ClusterInfo(pod.name, known, -1, None, epoch, (NodeState(NodeEndpoint(pod.name, "", 0, 0, 0, 0, ""), role, self.epoch if leads else 0),))
