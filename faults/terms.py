"""Who led when, as the nodes themselves wrote into their logs, and whether every answer fits to it.

A node writes `follower -> promoting (epoch N)` after the coordinator has given it the lease. From that moment the lease of the term before is over, so an
answer to a request that was *sent* later, by the node of the term before, was given without a lease. Nothing else is needed to see two leaders: an answer is
good if its call overlaps a time between the beginning of one of its node's terms and the beginning of the next term of anybody.

Times are Unix seconds of one machine. The log cuts them to milliseconds, which makes a term begin too early, never too late; hence the tolerance.
"""

from __future__ import annotations

import calendar
import itertools
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from faults.breaches import Breaches, Kind

_LINE = re.compile(r"^time=(\S+)\.(\d{3})Z .*node (\S+): follower -> promoting \(epoch (\d+)\)", re.MULTILINE)
_TOLERANCE_S = 0.002


@dataclass(frozen=True, slots=True)
class Term:
    epoch: int
    node: str
    begin: float


@dataclass(frozen=True, slots=True)
class Answer:
    """A leader-only request that was answered OK."""

    node: str
    sent: float
    got: float


def terms_of(logs: Mapping[str, str]) -> list[Term]:
    """From node id -> its log; by epoch."""
    found = []
    for node, log in logs.items():
        for stamp, millis, named, epoch in _LINE.findall(log):
            begin = calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S")) + int(millis) / 1000
            if named == node:
                found.append(Term(int(epoch), node, begin))
    return sorted(found, key=lambda term: term.epoch)


def check_terms(terms: list[Term], breaches: Breaches) -> None:
    """No epoch twice; a greater epoch begins later."""
    for before, after in itertools.pairwise(terms):
        if before.epoch == after.epoch:
            breaches.add(Kind.TWO_LEADERS, f"{before.node} and {after.node} both won epoch {after.epoch}")
        elif after.begin < before.begin - _TOLERANCE_S:
            breaches.add(Kind.EPOCH_BACK, f"epoch {after.epoch} of {after.node} began before epoch {before.epoch} of {before.node}")


def check_answers(terms: list[Term], answers: list[Answer], breaches: Breaches) -> None:
    ends = [term.begin for term in terms[1:]] + [float("inf")]
    of: dict[str, list[tuple[float, float]]] = {}
    for term, end in zip(terms, ends, strict=True):
        of.setdefault(term.node, []).append((term.begin - _TOLERANCE_S, end + _TOLERANCE_S))
    for answer in answers:
        if not any(begin <= answer.got and answer.sent <= end for begin, end in of.get(answer.node, ())):
            breaches.add(
                Kind.TWO_LEADERS, f"{answer.node} answered a request of {answer.sent:.3f} at {answer.got:.3f}; its terms: {_told(of.get(answer.node))}"
            )


def _told(spans: list[tuple[float, float]] | None) -> str:
    return ", ".join(f"{begin:.3f}-{end:.3f}" for begin, end in spans[-3:]) if spans else "none"
