"""What a KVCacheManager consists of, as objects for the API server. Pure: the same spec and volumes give the same objects, always.

Only fields that we care about are set, so that what the API server fills in is never a difference. Each object bears the hash of itself as it was
made: it tells a new wish of ours from a change by somebody else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from kvcm.resources.manager import KVCacheManagerResource, ServicePorts
from kvcm.resources.manager_settings import settings_file
from kvcm.resources.manager_uris import elects
from kvcm_operator import names
from kvcm_operator.children_pods import CONFIG_MOUNT, STARTUP_FILE, Mount, stateful_set
from kvcm_operator.world import Json

DESIRED_HASH = "kvcm.io/desired-hash"
SETTINGS_FILE = "kvcm.conf"


def build(resource: KVCacheManagerResource, uid: str, image: str, mounts: Sequence[Mount], *, bound: bool = False) -> list[Json]:
    """All objects, in the order in which they have to appear. `uid`: of the KVCacheManager, their owner. `bound`: it has a RoleBinding already."""
    config = config_map(resource)
    pieces = [
        config,
        service_account(resource),
        headless_service(resource),
        client_service(resource),
        leader_service(resource),
        *([role_binding(resource)] if elects(resource.spec) or bound else []),
        disruption_budget(resource),
        stateful_set(resource, image, mounts, config_hash=digest(config["data"])),
    ]
    return [_owned(piece, resource, uid) for piece in pieces]


def config_map(resource: KVCacheManagerResource) -> Json:
    """The manager's settings, and a start-up configuration without any storage and group: only resources configure it."""
    settings = settings_file(resource) + f"kvcm.startup_config={CONFIG_MOUNT}/{STARTUP_FILE}\n"
    return _object(resource, "v1", "ConfigMap", names.config_map(resource.metadata.name), data={SETTINGS_FILE: settings, STARTUP_FILE: "{}\n"})


def service_account(resource: KVCacheManagerResource) -> Json:
    # Only pods that elect a leader ask the API server for anything, and their own spec says so.
    return _object(resource, "v1", "ServiceAccount", names.service_account(resource.metadata.name), automountServiceAccountToken=False)


def headless_service(resource: KVCacheManagerResource) -> Json:
    """Names for pods, also while they are starting."""
    spec = _service_spec(resource) | {"clusterIP": "None", "publishNotReadyAddresses": True}
    return _object(resource, "v1", "Service", names.headless_service(resource.metadata.name), spec=spec)


def client_service(resource: KVCacheManagerResource) -> Json:
    """All ready pods: whichever answers says who leads."""
    return _object(resource, "v1", "Service", names.client_service(resource.metadata.name), spec=_service_spec(resource) | {"type": "ClusterIP"})


def leader_service(resource: KVCacheManagerResource) -> Json:
    """The pod that leads. It labels itself, so this follows an election also while the operator is away; one that is alone leads without a label."""
    spec = _service_spec(resource) | {"type": "ClusterIP"}
    if elects(resource.spec):
        spec["selector"] = {**spec["selector"], names.ROLE_LABEL: names.LEADER}
    return _object(resource, "v1", "Service", names.leader_service(resource.metadata.name), spec=spec)


def role_binding(resource: KVCacheManagerResource) -> Json:
    """Get, list and patch pods of the namespace, for the label of the leader. To a role that is there already: an operator that could make roles
    could make any. One that elects no more loses the right: the operator may not delete bindings, so nobody is left in it."""
    name, namespace = resource.metadata.name, resource.metadata.namespace
    return _object(
        resource,
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        names.role_binding(name),
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": names.POD_ROLE},
        subjects=[{"kind": "ServiceAccount", "name": names.service_account(name), "namespace": namespace}] if elects(resource.spec) else [],
    )


def disruption_budget(resource: KVCacheManagerResource) -> Json:
    """Nodes are drained one manager at a time; a single one may always go."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(resource.metadata.name)}}
    return _object(resource, "policy/v1", "PodDisruptionBudget", names.disruption_budget(resource.metadata.name), spec=spec)


def port_names(ports: ServicePorts) -> dict[str, int]:
    return {"meta-grpc": ports.meta_grpc, "meta-http": ports.meta_http, "admin-grpc": ports.admin_grpc, "admin-http": ports.admin_http}


def digest(value: Any) -> str:
    """A short hash of anything that JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _service_spec(resource: KVCacheManagerResource) -> Json:
    ports = port_names(resource.spec.service.ports).items()
    return {
        "selector": names.selector(resource.metadata.name),
        "ports": [{"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in ports],
    }


def _object(resource: KVCacheManagerResource, version: str, kind: str, name: str, **content: Any) -> Json:
    meta = {"name": name, "namespace": resource.metadata.namespace, "labels": names.labels(resource.metadata.name)}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **content}


def owner(resource: KVCacheManagerResource, uid: str) -> Json:
    """The reference that everything of a manager bears."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": resource.metadata.name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _owned(body: Json, resource: KVCacheManagerResource, uid: str) -> Json:
    meta = {**body["metadata"], "ownerReferences": [owner(resource, uid)]}
    meta["annotations"] = {DESIRED_HASH: digest({**body, "metadata": meta})}
    return {**body, "metadata": meta}
