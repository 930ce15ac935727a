"""What a resource may say about pods: resources, placement, labels and annotations.

Danger: these go into a pod template nearly as they are, and a template that the API server refuses stops a whole roll-out. So the rules of Kubernetes
that concern texts are checked here; what Kubernetes nests deeply (affinity) passes through unseen, bounded in size only.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, WithJsonSchema, model_validator

from kvcm.resources.base import Model

MAX_ENTRIES = 32
MAX_AFFINITY_CHARS = 16 * 1024
MAX_TOLERATION_S = 365 * 24 * 3600

_KEY_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?\Z")
_KEY_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_LABEL_VALUE = r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$"
_TAINT_KEY = r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$"
_QUANTITY = r"^[0-9]{1,15}([.][0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
OWN_PREFIXES = ("kvcm.io/", "app.kubernetes.io/")
OWN_KEYS_SENTENCE = f"must not have keys that begin with {' or '.join(OWN_PREFIXES)}; the operator sets those"

PATTERN_SENTENCES = {
    _LABEL_VALUE: "must consist of letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
    _TAINT_KEY: "must be the key of a taint",
}


def _quantity(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or not re.fullmatch(_QUANTITY[1:-1], str(value)):
        raise ValueError('must be an amount such as "500m", "2" or "4Gi"')
    return value


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if len(name) > 63 or not _KEY_NAME.match(name) or (slash and (len(prefix) > 253 or not _KEY_PREFIX.match(prefix))):
        raise ValueError("has a key that is not a name, or a domain, '/' and a name, as Kubernetes wants it")


def _keys(values: dict[str, Any]) -> dict[str, Any]:
    for key in values:
        _check_key(key)
    return values


def _foreign_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Labels of our own select pods, and annotations of our own steer the operator."""
    for key in values:
        if key.startswith(OWN_PREFIXES):
            raise ValueError(OWN_KEYS_SENTENCE)
    return values


def _affinity_size(value: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(value)) > MAX_AFFINITY_CHARS:
        raise ValueError(f"must be at most {MAX_AFFINITY_CHARS // 1024} KiB as JSON")
    return value


PodQuantity = Annotated[str | int, BeforeValidator(_quantity), WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32, "pattern": _QUANTITY})]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=_LABEL_VALUE)]
ResourceAmounts = Annotated[dict[str, PodQuantity], Field(max_length=16), AfterValidator(_keys)]
NodeSelector = Annotated[dict[str, LabelValue], Field(max_length=MAX_ENTRIES), AfterValidator(_keys)]
PodLabels = Annotated[dict[str, LabelValue], Field(max_length=MAX_ENTRIES), AfterValidator(_keys), AfterValidator(_foreign_keys)]
PodAnnotations = Annotated[
    dict[str, Annotated[str, StringConstraints(max_length=4096)]],
    Field(max_length=MAX_ENTRIES),
    AfterValidator(_keys),
    AfterValidator(_foreign_keys),
]
_Deep = Annotated[
    dict[str, Any],
    AfterValidator(_affinity_size),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


class PodResources(Model):
    """What a pod asks for and what it may use, as in any pod."""

    requests: ResourceAmounts = Field(default_factory=dict, description='What a node must have free, such as cpu: "1" and memory: 2Gi.')
    limits: ResourceAmounts = Field(default_factory=dict, description="What a pod may use at most.")


class Toleration(Model):
    """A taint that a pod may meet."""

    key: Annotated[str, StringConstraints(max_length=316, pattern=_TAINT_KEY)] | None = Field(
        default=None, description="Key of the taint; unset with Exists means every taint."
    )
    operator: Literal["Equal", "Exists"] = Field(default="Equal", description="Equal compares the value, Exists takes any.")
    value: LabelValue | None = Field(default=None, description="Value of the taint, with Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(default=None, description="Unset means every effect.")
    toleration_seconds: Annotated[int, Field(ge=0, le=MAX_TOLERATION_S)] | None = Field(
        default=None, description="How long a pod may stay, with NoExecute; unset means for ever."
    )

    @model_validator(mode="after")
    def _as_kubernetes_wants(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("value must be unset when operator is Exists")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("key must be set when operator is Equal")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds is only for effect NoExecute")
        return self


class Affinity(Model):
    """Where a pod wants to be, as in any pod. The members are Kubernetes' own and are checked by it."""

    node_affinity: _Deep | None = Field(default=None, description="Rules about nodes.")
    pod_affinity: _Deep | None = Field(default=None, description="Pods to be near to.")
    pod_anti_affinity: _Deep | None = Field(default=None, description="Pods to be away from.")
