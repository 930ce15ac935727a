"""The operator's own settings, all from the environment.

| variable | meaning | default |
| --- | --- | --- |
| KVCM_OPERATOR_NAMESPACES | namespaces to look after, with commas; empty for all | all |
| KVCM_OPERATOR_NAMESPACE | where the operator itself lives (its Lease) | `default` |
| KVCM_OPERATOR_IDENTITY | name of this process in the Lease | the host name |
| KVCM_OPERATOR_LEASE | on or off: one operator at a time by a Lease | on |
| KVCM_OPERATOR_DRIFT_SECONDS | how often everything is compared though nothing changed | 60 |
| KVCM_OPERATOR_GRACE_SECONDS | how long Ready stays when a manager is silent | 30 |
| KVCM_OPERATOR_MANAGER_IMAGE | image of managers whose spec names none | |
| KVCM_OPERATOR_CLUSTER_DOMAIN | the cluster's DNS domain | `cluster.local` |
| KVCM_OPERATOR_ADMIN_OVERRIDE | `namespace/name=host:port,...`: where managers are reached instead of their Services | |
| KVCM_OPERATOR_HTTP_PORT | port of /healthz, /readyz and /metrics; 0 for none | 8080 |
| KVCM_OPERATOR_LOG_LEVEL | DEBUG, INFO, WARNING or ERROR | INFO |
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from kvcm.common.errors import InvalidArgument
from kvcm_operator.directory import parse_overrides

MIN_DRIFT_S = 1.0
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    namespaces: tuple[str, ...]
    namespace: str
    identity: str
    lease: bool
    drift_s: float
    grace_s: float
    image: str
    cluster_domain: str
    overrides: Mapping[tuple[str, str], str]
    http_port: int
    log_level: str


def from_environment(env: Mapping[str, str]) -> OperatorSettings:
    """Raises InvalidArgument with a sentence that names the variable."""

    def text(name: str, default: str = "") -> str:
        return env.get(f"KVCM_OPERATOR_{name}", "").strip() or default

    level = text("LOG_LEVEL", "INFO").upper()
    if level not in _LEVELS:
        raise InvalidArgument(f"KVCM_OPERATOR_LOG_LEVEL must be one of {', '.join(_LEVELS)}")
    lease = text("LEASE", "on").lower()
    if lease not in ("on", "off"):
        raise InvalidArgument("KVCM_OPERATOR_LEASE must be on or off")
    return OperatorSettings(
        namespaces=tuple(filter(None, (name.strip() for name in text("NAMESPACES").split(",")))),
        namespace=text("NAMESPACE", "default"),
        identity=text("IDENTITY") or socket.gethostname(),
        lease=lease == "on",
        drift_s=_number("DRIFT_SECONDS", text("DRIFT_SECONDS", "60"), MIN_DRIFT_S, 86_400),
        grace_s=_number("GRACE_SECONDS", text("GRACE_SECONDS", "30"), 0, 3600),
        image=text("MANAGER_IMAGE"),
        cluster_domain=text("CLUSTER_DOMAIN", "cluster.local").strip("."),
        overrides=parse_overrides(text("ADMIN_OVERRIDE")),
        http_port=int(_number("HTTP_PORT", text("HTTP_PORT", "8080"), 0, 65_535)),
        log_level=level,
    )


def _number(name: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidArgument(f"KVCM_OPERATOR_{name} must be a number from {least:g} to {most:g}")
    return value
