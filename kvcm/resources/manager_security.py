"""Who may administer a KVCacheManager, and its certificate: parts of its spec. Secrets are only named here, never held.

Guarded by default: the operator makes a token of its own, unless the spec says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from kvcm.resources.base import Model, ResourceName

DEFAULT_KEY = "token"
SECRET_KEY = r"^[-._a-zA-Z0-9]+$"
PATTERN_SENTENCES = {SECRET_KEY: "must be a key of a Secret: letters, digits, '-', '_' and '.'"}
SECRET_SENTENCE = "secret must be set when type is secret, and only then"


class SecretKey(Model):
    """One entry of a Secret in the manager's namespace."""

    name: ResourceName = Field(description="Name of the Secret.")
    key: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=SECRET_KEY)] = Field(default=DEFAULT_KEY, description="Key within it.")


class AdminToken(Model):
    """What callers of the admin ports must present, also for metrics. Pods take over a changed token without a restart."""

    type: Literal["generated", "secret", "none"] = Field(
        default="generated",
        description="generated: random, in the Secret NAME-admin-token. secret: the entry named in secret. none: everybody may administer the manager.",
    )
    secret: SecretKey | None = Field(default=None, description="For secret: one token a line; the operator presents the first.")

    @model_validator(mode="after")
    def _secret_with_type(self) -> AdminToken:
        if (self.type == "secret") != (self.secret is not None):
            raise ValueError(SECRET_SENTENCE)
        return self


class Tls(Model):
    """TLS on all ports of the manager."""

    secret_name: ResourceName = Field(
        description="Secret with tls.crt and tls.key, valid for NAME.NAMESPACE.svc, NAME-leader.NAMESPACE.svc and *.NAME-nodes.NAMESPACE.svc, and ca.crt, "
        "by which the operator checks them; cert-manager makes such."
    )
