"""The Secret with the token of administrators that the operator makes, and the look at Secrets that users bring. Builders and judges; nothing is sent here.

What is in a token's Secret is decided once: a pass that made a new one each time would lock everybody out. Whoever wants another token changes the Secret,
or deletes it and gets a new one.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from kvcm.resources.manager import KVCacheManagerResource
from kvcm.resources.manager_security import DEFAULT_KEY
from kvcm.resources.manager_uris import secret_mounts
from kvcm_operator import names
from kvcm_operator.access import TLS_KEYS, entry
from kvcm_operator.children import owner
from kvcm_operator.children_apply import check_owner
from kvcm_operator.subject import mapping
from kvcm_operator.world import Json, Ref


def token_secret_body(resource: KVCacheManagerResource, uid: str, token: str) -> Json:
    """`uid`: of the KVCacheManager, its owner."""
    meta = resource.metadata
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.admin_token(meta.name),
            "namespace": meta.namespace,
            "labels": names.labels(meta.name),
            "ownerReferences": [owner(resource, uid)],
        },
        "type": "Opaque",
        "data": {DEFAULT_KEY: base64.b64encode(token.encode()).decode()},
    }


def check_own(actual: Json, resource: KVCacheManagerResource, uid: str) -> None:
    """Raises NotOurs, ChildLeaving."""
    check_owner("Secret", mapping(actual.get("metadata")), owner(resource, uid), "name it in spec.adminToken.secret")


def wanted_entries(resource: KVCacheManagerResource) -> dict[Ref, tuple[str, ...]]:
    """Secrets that users bring, and the entries that must be in them."""
    spec, namespace = resource.spec, resource.metadata.namespace
    found: dict[Ref, tuple[str, ...]] = {}
    if spec.admin_token.secret is not None:
        found[Ref("Secret", namespace, spec.admin_token.secret.name)] = (spec.admin_token.secret.key,)
    if spec.tls is not None:
        ref = Ref("Secret", namespace, spec.tls.secret_name)
        found[ref] = found.get(ref, ()) + TLS_KEYS
    for mount in secret_mounts(spec):
        ref = Ref("Secret", namespace, mount.secret)
        found[ref] = found.get(ref, ()) + mount.keys
    return found


def missing_entry(wanted: Mapping[Ref, tuple[str, ...]], secrets: Mapping[Ref, Json | None]) -> str:
    """A sentence about the first Secret that is not as it must be; empty when all are."""
    for ref, keys in wanted.items():
        secret = secrets[ref]
        if secret is None:
            return f"the Secret {ref.name} does not exist; it is waited for"
        lacking = [key for key in keys if not entry(secret, key).strip()]
        if lacking:
            return f"the Secret {ref.name} has nothing at {', '.join(lacking)}; it is waited for"
    return ""
