"""How tools read a status: kstatus (Flux and others) and `kubectl wait`. For tests that judge streams of statuses, and for our own waiting.

Rules: being deleted is terminating; a status about another generation is in progress; then Reconciling, Stalled and Ready, in that order. A status
that says nothing at all counts as done, which is why the CRDs give it a default of generation -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Kstatus(Enum):
    IN_PROGRESS = "InProgress"
    CURRENT = "Current"
    FAILED = "Failed"
    TERMINATING = "Terminating"


def kstatus(document: Mapping[str, Any]) -> Kstatus:
    """The state of an object as the API server returns it."""
    metadata = _mapping(document.get("metadata"))
    status = _mapping(document.get("status"))
    if metadata.get("deletionTimestamp") is not None:
        return Kstatus.TERMINATING
    generation, observed = metadata.get("generation"), status.get("observedGeneration")
    if observed is not None and generation is not None and observed != generation:
        return Kstatus.IN_PROGRESS
    value = {condition.get("type"): condition.get("status") for condition in _conditions(status)}
    if value.get("Reconciling") == "True":
        return Kstatus.IN_PROGRESS
    if value.get("Stalled") == "True":
        return Kstatus.FAILED
    if "Ready" in value and value["Ready"] != "True":
        return Kstatus.IN_PROGRESS
    return Kstatus.CURRENT


def wait_returns(document: Mapping[str, Any], condition: str, status: str = "True") -> bool:
    """Would `kubectl wait --for=condition=<condition>=<status>` return now? It takes no answer about an older generation."""
    generation = _mapping(document.get("metadata")).get("generation", 0)
    whole = _mapping(document.get("status"))
    for item in _conditions(whole):
        if str(item.get("type", "")).lower() != condition.lower():
            continue
        observed = item.get("observedGeneration", whole.get("observedGeneration"))
        if observed is not None and observed < generation:
            return False
        return str(item.get("status", "")).lower() == status.lower()
    return False


def _conditions(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = status.get("conditions")
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, (list, tuple)) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
