"""The StatefulSet of a KVCacheManager. Pure.

The operator orders roll-outs, so the set itself replaces nothing (OnDelete); a hash over everything that a running pod cannot take over stands in the
template, and a pod with another hash is an old one. Pods meet the restricted Pod Security Standard: no root, no capabilities, a root file system that
cannot be written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.manager_security import DEFAULT_KEY
from kvcm.resources.manager_settings import ADMIN_TOKEN_MOUNT, TLS_MOUNT
from kvcm.resources.manager_uris import REGISTRY_MOUNT, STORES_MOUNT, coordination_place, elects, secret_mounts
from kvcm_operator import names
from kvcm_operator.mounts import volume_source
from kvcm_operator.world import Json

CONFIG_HASH = "kvcm.io/config-hash"
COORDINATION = "kvcm.io/coordination"
"""Annotation of a pod: the election that it takes part in."""
TOKEN_KEY = "kvcm.io/admin-token-key"
"""Annotation of a pod: the entry of its Secret that holds the token of administrators."""
TOKEN_VOLUME, TLS_VOLUME, ADMIN_PORT = "admin-token", "tls", "admin-grpc"
CONFIG_MOUNT = "/etc/kvcm"
STATE_MOUNT = "/var/lib/kvcm"
STARTUP_FILE = "startup.json"
CONTAINER = "manager"
USER = 65532
# Draining takes up to half a minute; the kubelet must not be faster.
STOP_S = 60
OWN_PATHS = (CONFIG_MOUNT, STATE_MOUNT, REGISTRY_MOUNT, ADMIN_TOKEN_MOUNT, TLS_MOUNT, STORES_MOUNT, "/tmp")
# Readable by the group of the manager, and by nobody else.
_SECRET_MODE = 0o440


@dataclass(frozen=True, slots=True)
class Mount:
    """A storage's volume in the manager's pods."""

    name: str
    path: str
    source: Json


def stateful_set(resource: KVCacheManagerResource, image: str, mounts: Sequence[Mount], config_hash: str) -> Json:
    name, spec = resource.metadata.name, resource.spec
    pod = _pod_spec(resource, image, mounts)
    # The hash covers the settings too: a pod reads them only when it starts.
    template_meta = {"labels": {**spec.pod_labels, **names.labels(name)}, "annotations": {**spec.pod_annotations, **_notes(resource)}}
    content = json.dumps([config_hash, template_meta, pod], sort_keys=True)
    template_meta["annotations"][CONFIG_HASH] = hashlib.sha256(content.encode()).hexdigest()[:16]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": names.stateful_set(name), "namespace": resource.metadata.namespace, "labels": names.labels(name)},
        "spec": {
            "replicas": spec.replicas,
            "serviceName": names.headless_service(name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.selector(name)},
            "template": {"metadata": template_meta, "spec": pod},
        },
    }


def _notes(resource: KVCacheManagerResource) -> dict[str, str]:
    """What the operator has to know of a pod for as long as it runs, whatever the spec says by then."""
    token = token_secret(resource)
    return {COORDINATION: coordination_place(resource), **({TOKEN_KEY: token[1]} if token is not None else {})}


def token_secret(resource: KVCacheManagerResource) -> tuple[str, str] | None:
    """Name and key of the Secret with the token of administrators; None when everybody may administer."""
    token = resource.spec.admin_token
    if token.type == "none":
        return None
    return (token.secret.name, token.secret.key) if token.secret is not None else (names.admin_token(resource.metadata.name), DEFAULT_KEY)


def _pod_spec(resource: KVCacheManagerResource, image: str, mounts: Sequence[Mount]) -> Json:
    spec = resource.spec
    own: list[tuple[str, str, Json]] = [
        ("config", CONFIG_MOUNT, {"configMap": {"name": names.config_map(resource.metadata.name)}}),
        ("state", STATE_MOUNT, {"emptyDir": {}}),
        ("tmp", "/tmp", {"emptyDir": {}}),  # a path inside the container
    ]
    if spec.registry.volume is not None:
        own.append(("registry", REGISTRY_MOUNT, volume_source(spec.registry.volume)))
    token = token_secret(resource)
    if token is not None:
        own.append((TOKEN_VOLUME, ADMIN_TOKEN_MOUNT, {"secret": {"secretName": token[0], "defaultMode": _SECRET_MODE}}))
    if spec.tls is not None:
        own.append((TLS_VOLUME, TLS_MOUNT, {"secret": {"secretName": spec.tls.secret_name, "defaultMode": _SECRET_MODE}}))
    own += [(one.name, one.path, {"secret": {"secretName": one.secret, "defaultMode": _SECRET_MODE}}) for one in secret_mounts(spec)]
    volumes = [*own, *((mount.name, mount.path, mount.source) for mount in mounts)]
    pod: Json = {
        "serviceAccountName": names.service_account(resource.metadata.name),
        # For the label of the leader (`names.POD_ROLE`); one that is alone has no business with the API server.
        "automountServiceAccountToken": elects(spec),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": STOP_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": dict(spec.node_selector),
        "tolerations": [item.model_dump(mode="json", by_alias=True, exclude_none=True) for item in spec.tolerations],
        "affinity": _affinity(resource),
        "containers": [_container(resource, image, [(name, path) for name, path, _ in volumes])],
        "volumes": [{"name": name, **source} for name, _, source in volumes],
    }
    return pod


def _affinity(resource: KVCacheManagerResource) -> Json:
    """As the spec says. Where it says nothing about other pods: rather not two managers of one service on one node."""
    said: Json = resource.spec.affinity.model_dump(mode="json", by_alias=True, exclude_none=True) if resource.spec.affinity is not None else {}
    others = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": names.selector(resource.metadata.name)}}
    apart = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": others}]}
    return {"podAntiAffinity": apart, **said}


def _container(resource: KVCacheManagerResource, image: str, mounts: Sequence[tuple[str, str]]) -> Json:
    spec, ports = resource.spec, resource.spec.service.ports
    # A name that outlives the pod's address and that a certificate can have; resolvers of pods put the cluster's domain behind it.
    host = f"$(POD_NAME).{names.headless_service(resource.metadata.name)}.$(POD_NAMESPACE).svc"
    numbers = {"meta-grpc": ports.meta_grpc, "meta-http": ports.meta_http, ADMIN_PORT: ports.admin_grpc, "admin-http": ports.admin_http}
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy,
        # Names and addresses differ by pod, so they are arguments and not in the file.
        "command": ["kvcm", "serve", "--config-file", f"{CONFIG_MOUNT}/kvcm.conf"],
        "args": ["--env", "kvcm.leader_elector.node_id=$(POD_NAME)", "--env", f"kvcm.service.advertised_host={host}"],
        "env": [_from_pod("POD_NAME", "metadata.name"), _from_pod("POD_NAMESPACE", "metadata.namespace")],
        "ports": [{"name": name, "containerPort": number, "protocol": "TCP"} for name, number in numbers.items()],
        # Health says no while a leader is missing or recovery runs; restarting would not help then, so only a closed port counts as dead.
        "livenessProbe": {"tcpSocket": {"port": "admin-http"}, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {
            # Open without a token, which the kubelet has not got; it does not check certificates either.
            "httpGet": {"path": "/readyz", "port": "admin-http", "scheme": "HTTPS" if spec.tls is not None else "HTTP"},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "resources": spec.resources.model_dump(mode="json", by_alias=True),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts],
    }


def _from_pod(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
