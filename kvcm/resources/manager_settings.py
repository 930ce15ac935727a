"""The `kvcm.*` settings of a KVCacheManager: which a resource may give, and the file that its pods are started with.

Danger: a manager ignores what it does not know and says so in a log that nobody reads. In a resource that is an error (design D10): everything that
start-up would warn about is refused here, and so is what another field of the resource decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvcm.config.errors import SettingsError
from kvcm.config.settings import setting_keys
from kvcm.config.settings_load import load_settings
from kvcm.resources.duration import parse_duration
from kvcm.resources.manager_security import DEFAULT_KEY
from kvcm.resources.manager_uris import coordination_uri, elects, metadata_uri, registry_uri

if TYPE_CHECKING:
    from kvcm.resources.manager import KVCacheManagerResource

ADMIN_TOKEN_MOUNT = "/etc/kvcm-admin-token"
"""Where pods mount the Secret with the tokens of administrators; as a folder, because a single file would never change."""
TLS_MOUNT = "/etc/kvcm-tls"

LEASE_KEY = "kvcm.leader_elector.lease_ms"
_PREFIX = "kvcm."
_NOT_HERE = "is not part of this version on Kubernetes"
_OPERATOR = "the operator sets it for each pod"
_DECIDED = {
    "kvcm.registry_storage.uri": "set spec.registry",
    "kvcm.coordination.uri": "set spec.coordination",
    "kvcm.distributed_lock.uri": "set spec.coordination",
    "kvcm.service.rpc_port": "set spec.service.ports.metaGrpc",
    "kvcm.service.http_port": "set spec.service.ports.metaHttp",
    "kvcm.service.admin_rpc_port": "set spec.service.ports.adminGrpc",
    "kvcm.service.admin_http_port": "set spec.service.ports.adminHttp",
    "kvcm.service.advertised_host": _OPERATOR,
    "kvcm.leader_elector.node_id": _OPERATOR,
    LEASE_KEY: "set spec.coordination.leaseDuration",
    "kvcm.meta.redis_uri": "set spec.metadataBackend",
    "kvcm.kubernetes.label_pod": _OPERATOR,
    "kvcm.startup_config": "apply Storage and InstanceGroup resources instead",
    "kvcm.service.admin_auth_token": "a resource is readable by many and no place for a secret",
    "kvcm.service.admin_auth_token_file": "set spec.adminToken",
    "kvcm.service.admin_auth_http_only": "it would leave an admin port open to everybody",
    "kvcm.service.meta_auth_token_file": f"a token for the metadata ports {_NOT_HERE}",
    "kvcm.service.auth": f"authentication by accounts {_NOT_HERE}",
    "kvcm.service.bind_host": "pods are reached from other machines",
    "kvcm.service.probe_port": "probes ask the adminHttp port",
    "kvcm.tls.cert_file": "set spec.tls.secretName",
    "kvcm.tls.key_file": "set spec.tls.secretName",
    "kvcm.tls.client_ca_file": f"asking clients for certificates {_NOT_HERE}",
    "kvcm.tls.client_auth": f"asking clients for certificates {_NOT_HERE}",
    "kvcm.tls.admin_only": f"TLS on some of the ports {_NOT_HERE}",
}


def settings_problems(settings: Mapping[str, str], decided: Mapping[str, str] | None = None) -> list[str]:
    """Sentences for what cannot be accepted, without any value; empty when all is well. `decided`: settings that other fields make, which they must suit."""
    known = setting_keys()
    found = []
    for key in settings:
        if key in _DECIDED:
            found.append(f"{key} cannot be set here: {_DECIDED[key]}")
        elif key not in known:
            near = difflib.get_close_matches(key, [name for name in known if name not in _DECIDED], n=1)
            hint = f"did you mean {near[0]}?" if near else f"keys begin with {_PREFIX} and are those of the manager's configuration file"
            found.append(f"{key[:80]} is not a setting that this version knows; {hint}")
    if found:
        return found
    try:
        return list(load_settings(None, [f"{key}={value}" for key, value in {**(decided or {}), **settings}.items()], {}).warnings)
    except SettingsError as error:
        return [str(error)]


def manager_settings(resource: KVCacheManagerResource) -> dict[str, str]:
    """Every setting that follows from a resource, sorted by key, and no secret. The host name and the node id differ by pod and are not among them."""
    spec = resource.spec
    ports = spec.service.ports
    decided = {
        "kvcm.registry_storage.uri": registry_uri(resource),
        "kvcm.coordination.uri": coordination_uri(resource),
        LEASE_KEY: str(parse_duration(spec.coordination.lease_duration)),
        "kvcm.meta.redis_uri": metadata_uri(resource),
        # One that is alone needs no label: the leader Service selects it without.
        "kvcm.kubernetes.label_pod": "true" if elects(spec) else "",
        "kvcm.service.rpc_port": str(ports.meta_grpc),
        "kvcm.service.http_port": str(ports.meta_http),
        "kvcm.service.admin_rpc_port": str(ports.admin_grpc),
        "kvcm.service.admin_http_port": str(ports.admin_http),
    }
    token, secret = spec.admin_token, spec.admin_token.secret
    if token.type != "none":
        decided["kvcm.service.admin_auth_token_file"] = f"{ADMIN_TOKEN_MOUNT}/{DEFAULT_KEY if secret is None else secret.key}"
    if spec.tls is not None:
        decided |= {"kvcm.tls.cert_file": f"{TLS_MOUNT}/tls.crt", "kvcm.tls.key_file": f"{TLS_MOUNT}/tls.key"}
    return dict(sorted({**spec.settings, **decided}.items()))


def settings_file(resource: KVCacheManagerResource) -> str:
    """The same as a configuration file for `kvcm serve --config-file`; the same text for the same resource, always."""
    return "".join(f"{key}={value}\n" for key, value in manager_settings(resource).items() if value)
