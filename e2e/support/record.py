"""Everything that a watch shows of our kinds in some namespaces, and the verdict of the tools that read it.

The rules are those of kstatus and of `kubectl wait` (kvcm/resources/kstatus.py), and of the contract of our conditions: no status calls an object
done for a generation that it does not speak about, Ready comes and goes only when a story says why, and times move only with statuses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from e2e.cluster.waiting import eventually
from e2e.support.kube import OURS, Json, Kube, Seen
from e2e.support.watches import Watches
from kvcm.resources.kstatus import Kstatus, kstatus, wait_returns


class Record(Watches):
    """Recording begins with the block and ends with it, and then `problems` is asked for by name: a story that forgets it has proved nothing."""

    def __init__(self, kube: Kube, namespaces: Sequence[str]) -> None:
        super().__init__(kube, [(kind, namespace) for namespace in namespaces for kind in OURS])
        self._namespaces = namespaces
        self._streams: dict[str, list[Seen]] = defaultdict(list)

    def stream(self, kind: str, name: str) -> list[Seen]:
        """What was seen of all objects of that kind and name, in order."""
        with self._lock:
            return [seen for key, seens in sorted(self._streams.items()) if key.startswith(f"{kind}/") and key.split("/")[2] == name for seen in seens]

    def states(self, kind: str, name: str) -> list[str]:
        """How kstatus read it over time, without repetitions: `InProgress`, `Current`, ..."""
        return _without_repetitions([state(seen) for seen in self.stream(kind, name)])

    def caught_up(self) -> None:
        """Wait until the watches have shown what a read shows now."""

        def reached() -> bool:
            now = {
                body["metadata"]["uid"]: body["metadata"]["resourceVersion"] for ns in self._namespaces for kind in OURS for body in self._kube.all(kind, ns)
            }
            with self._lock:
                last = {seens[-1].body["metadata"]["uid"]: seens[-1].body["metadata"]["resourceVersion"] for seens in self._streams.values()}
            return now.items() <= last.items()

        eventually(reached, "the watches show what is there")

    def problems(self, *, dips: int = 0) -> list[str]:
        """What a reader of the whole record would complain about.

        dips: how often one object may leave Current within one generation; a story in which a manager is away for long, or a root vanishes, has a
        reason for that.
        """
        broken = [f"a watch broke: {error}" for error in self.broken]
        with self._lock:
            return broken + [problem for key, seens in sorted(self._streams.items()) for problem in judge(key, seens, dips)]

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._streams.values()))

    def _keep(self, seen: Seen) -> None:
        meta = seen.body["metadata"]
        with self._lock:
            self._streams[f"{seen.body['kind']}/{meta['namespace']}/{meta['name']}/{meta['uid']}"].append(seen)


def state(seen: Seen) -> str:
    return "Gone" if seen.type == "DELETED" else kstatus(seen.body).value


def judge(key: str, seens: Sequence[Seen], dips: int) -> list[str]:
    """Complaints about one object's stream; `key` is what they begin with."""
    found: list[str] = []
    left: dict[int, int] = defaultdict(int)
    before: Seen | None = None
    for seen in seens:
        found += [f"{key}: {problem}" for problem in (_one(seen.body) if before is None else _one(seen.body) + _step(before.body, seen.body))]
        generation = seen.body["metadata"]["generation"]
        if before is not None and before.body["metadata"]["generation"] == generation and not _leaving(seen):
            left[generation] += state(before) == Kstatus.CURRENT.value != state(seen)
        before = seen
    for generation, times in left.items():
        if times > dips:
            story = " ".join(_without_repetitions([_words(seen) for seen in seens]))
            found.append(f"{key}: left Current {times} times within generation {generation}, {dips} allowed: {story}")
    return found


def _one(body: Json) -> list[str]:
    """What is wrong with one status by itself."""
    found = []
    generation, status = body["metadata"]["generation"], body.get("status") or {}
    observed, conditions = status.get("observedGeneration"), _conditions(body)
    said = kstatus(body)
    if observed is None or observed > generation:
        found.append(f"generation {generation} has the status of generation {observed}")
    if observed != generation and said in (Kstatus.CURRENT, Kstatus.FAILED):
        found.append(f"generation {generation} is {said.value} by a status about {observed}")
    if any(condition.get("observedGeneration") != observed for condition in conditions.values()):
        found.append(f"conditions speak about other generations than the status ({observed})")
    if _true(conditions, "Reconciling") and _true(conditions, "Stalled"):
        found.append("Reconciling and Stalled are both True")
    if wait_returns(body, "Ready") and said not in (Kstatus.CURRENT, Kstatus.TERMINATING):
        found.append(f"kubectl wait returns while kstatus says {said.value}")
    if said is Kstatus.CURRENT and not wait_returns(body, "Ready"):
        found.append("kstatus says Current and kubectl wait does not return")
    return found


def _step(old: Json, new: Json) -> list[str]:
    """What may not happen between two versions of one object."""
    found = []
    before, after = _conditions(old), _conditions(new)
    for kind, condition in after.items():
        last = before.get(kind)
        if last is not None and last["status"] == condition["status"] and last["lastTransitionTime"] != condition["lastTransitionTime"]:
            found.append(f"the time of {kind} moved although its status is still {last['status']}")
    if (new["status"].get("observedGeneration") or 0) < (old["status"].get("observedGeneration") or 0):
        found.append("observedGeneration went back")
    if before and not after:
        found.append("the conditions went away")
    return found


def _conditions(body: Json) -> dict[str, Json]:
    conditions: list[Json] = (body.get("status") or {}).get("conditions") or []
    return {condition["type"]: condition for condition in conditions}


def _true(conditions: dict[str, Json], kind: str) -> bool:
    return bool(conditions.get(kind, {}).get("status") == "True")


def _leaving(seen: Seen) -> bool:
    return seen.type == "DELETED" or seen.body["metadata"].get("deletionTimestamp") is not None


def _words(seen: Seen) -> str:
    ready: dict[str, Any] = _conditions(seen.body).get("Ready", {})
    return f"{state(seen)}({seen.body['metadata']['generation']},{ready.get('reason', '-')})"


def _without_repetitions(words: Sequence[str]) -> list[str]:
    return [word for index, word in enumerate(words) if index == 0 or word != words[index - 1]]
