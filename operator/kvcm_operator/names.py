"""Names and labels of what the operator makes for a KVCacheManager. Never changed: a new name would leave the old object behind."""

from __future__ import annotations

from kvcm_operator.world import MANAGER_LABEL

COMPONENT_LABEL = "app.kubernetes.io/component"
ROLE_LABEL = "kvcm.io/role"
LEADER = "leader"
"""The label and its value that the manager which leads puts on its own pod (`kvcm.kubernetes.label_pod`)."""
POD_ROLE = "kvcm-manager"
"""The ClusterRole that lets a manager label pods of its namespace; it is installed with the operator, which may hand it out and does not have it."""


def client_service(manager: str) -> str:
    return manager


def leader_service(manager: str) -> str:
    return f"{manager}-leader"


def headless_service(manager: str) -> str:
    return f"{manager}-nodes"


def stateful_set(manager: str) -> str:
    return manager


def config_map(manager: str) -> str:
    return f"{manager}-config"


def service_account(manager: str) -> str:
    return f"{manager}-manager"


def role_binding(manager: str) -> str:
    return f"{manager}-manager"


def disruption_budget(manager: str) -> str:
    return f"{manager}-manager"


def admin_token(manager: str) -> str:
    """The Secret with the token that the operator makes."""
    return f"{manager}-admin-token"


def selector(manager: str) -> dict[str, str]:
    """What the pods of a manager have in common, and nothing else has."""
    return {COMPONENT_LABEL: "manager", MANAGER_LABEL: manager}


def labels(manager: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "kvcm",
        "app.kubernetes.io/instance": manager,
        "app.kubernetes.io/managed-by": "kvcm-operator",
        **selector(manager),
    }


def selector_text(manager: str) -> str:
    """The same for tools that scale."""
    return ",".join(f"{name}={value}" for name, value in sorted(selector(manager).items()))
