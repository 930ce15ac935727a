"""Names of what the operator makes for a KVCacheManager. Never changed: a new name would leave the old object behind."""

from __future__ import annotations


def client_service(manager: str) -> str:
    return manager


def headless_service(manager: str) -> str:
    return f"{manager}-nodes"


def stateful_set(manager: str) -> str:
    return manager


def config_map(manager: str) -> str:
    return f"{manager}-config"


def service_account(manager: str) -> str:
    return f"{manager}-manager"
