"""How the admin API of one pod is opened: read off the pod itself, which still has what the spec said when it was made. Pure.

Danger: the spec says how the *next* pods are opened. While a roll-out changes the port, the token's Secret or TLS, pods of both kinds run, and whoever
knocks at an old one as at a new one hears nothing: then nobody could tell who leads, and the roll-out would wait for ever.
"""

from __future__ import annotations

from kvcm_operator.children_pods import ADMIN_PORT, CONTAINER, TLS_VOLUME, TOKEN_KEY, TOKEN_VOLUME
from kvcm_operator.gate import DEFAULT_ADMIN_PORT
from kvcm_operator.subject import mapping
from kvcm_operator.world import Door, Json


def door_of(pod: Json) -> Door:
    """The host is empty before the pod has an address."""
    spec, notes = mapping(pod.get("spec")), mapping(mapping(pod.get("metadata")).get("annotations"))
    secrets = {str(one.get("name")): str(mapping(one.get("secret")).get("secretName") or "") for one in map(mapping, spec.get("volumes") or [])}
    return Door(
        host=str(mapping(pod.get("status")).get("podIP") or ""),
        port=_port(spec),
        token_secret=secrets.get(TOKEN_VOLUME, ""),
        token_key=str(notes.get(TOKEN_KEY) or ""),
        tls_secret=secrets.get(TLS_VOLUME, ""),
    )


def _port(spec: Json) -> int:
    ports = [mapping(port) for one in map(mapping, spec.get("containers") or []) if one.get("name") == CONTAINER for port in one.get("ports") or []]
    found = next((port.get("containerPort") for port in ports if port.get("name") == ADMIN_PORT), None)
    return found if isinstance(found, int) else DEFAULT_ADMIN_PORT
