"""What all custom resources share: strict models, metadata, references, conditions.

Danger: every model here is the source of a CRD schema, a command line and an operator at once. A field may only exist when something acts on
it (design D10), and a rule written in a Python validator needs its twin in `rules.py`, or the API server will accept what we refuse.
Specs are strict (no coercion, unknown fields are errors); `status` is written by the operator and read leniently, so that an old tool can read
a resource that a newer operator has touched.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel

from kvcm.data_storage.naming import MAX_KEYS_PER_FILE
from kvcm.resources import duration, quantity

GROUP = "kvcm.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

MAX_NAME_CHARS = 253
MAX_PATH_CHARS = 1024
DNS_SUBDOMAIN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
# Names on the server become the host part of URIs; engines already use capitals and underscores in them.
SERVER_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
# Blanks and control characters, written out for the inside of [^...]: `\s` means ASCII on an API server (RE2) and Unicode in pydantic.
BLANKS = r"\x00-\x20\x7f-\xa0"
# Paths are pasted into URIs that nobody percent-encodes, so the characters that end a path there are refused.
ABSOLUTE_PATH = rf"^/[^{BLANKS}?&#\\/][^{BLANKS}?&#\\]*$"
RELATIVE_PATH = rf"^[^{BLANKS}?&#\\/][^{BLANKS}?&#\\]*$"
HOST = r"^[A-Za-z0-9._:\[\]-]+$"
SERVICE_URI = rf"^[^{BLANKS}@]+$"
WORD = rf"^[^{BLANKS}]*$"
FULL_WORD = rf"^[^{BLANKS}]+$"
# Not a directory: the file of an instance is this path with `.<instance id>` behind it.
FILE_URI = rf"^file:///([^{BLANKS}?#]*[^{BLANKS}?#/])$"

# What a text must look like, for people; the pattern itself helps nobody.
PATTERN_SENTENCES = {
    DNS_SUBDOMAIN: "must consist of lower-case letters, digits, '-' and '.', and begin and end with a letter or digit, as must each part between dots",
    SERVER_NAME: "must consist of letters, digits, '-', '_' and '.', and begin and end with a letter or digit",
    ABSOLUTE_PATH: "must be an absolute path below '/', without spaces, '?', '&', '#' and '\\'",
    RELATIVE_PATH: "must be a relative path (no leading '/'), without spaces, '?', '&', '#' and '\\'",
    HOST: "must be a host name or address",
    SERVICE_URI: "must not contain spaces or '@'",
    WORD: "must not contain blanks",
    FULL_WORD: "must not be empty and not contain blanks",
    FILE_URI: "must look like file:///directory/name, without spaces, '?', '#' and a '/' at the end",
}


class Model(BaseModel):
    """A strict, immutable part of a spec; camelCase in YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


class StatusModel(BaseModel):
    """A part of a status: written by the operator only, unknown fields of newer versions are skipped."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel)


def _no_parent_steps(path: object) -> object:
    if isinstance(path, str) and ".." in path.split("/"):
        raise ValueError("must not contain '..' steps")
    return path


def _no_credentials(uri: object) -> object:
    """Secrets never stand in a resource: everybody who may read it would read them."""
    if isinstance(uri, str) and "@" in uri:
        raise ValueError("must not contain credentials or any other '@'; a resource is readable by many")
    return uri


def _quantity(value: object) -> object:
    quantity.parse_quantity(value)  # type: ignore[arg-type]  # it refuses every other type with a sentence
    return value


def _duration(value: object) -> object:
    duration.parse_duration(value)  # type: ignore[arg-type]  # it refuses every other type with a sentence
    return value


ResourceName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS, pattern=DNS_SUBDOMAIN)]
ServerName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS, pattern=SERVER_NAME)]
AbsolutePath = Annotated[str, StringConstraints(max_length=MAX_PATH_CHARS, pattern=ABSOLUTE_PATH), BeforeValidator(_no_parent_steps)]
RelativePath = Annotated[str, StringConstraints(max_length=MAX_PATH_CHARS, pattern=RELATIVE_PATH), BeforeValidator(_no_parent_steps)]
Host = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS, pattern=HOST)]
Port = Annotated[int, Field(ge=1, le=65535)]
ServiceUri = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATH_CHARS, pattern=SERVICE_URI), BeforeValidator(_no_credentials)]
FileUri = Annotated[str, StringConstraints(max_length=MAX_PATH_CHARS, pattern=FILE_URI), BeforeValidator(_no_parent_steps)]
KeyCountPerFile = Annotated[int, Field(ge=1, le=MAX_KEYS_PER_FILE)]
Quantity = Annotated[
    str | int,
    BeforeValidator(_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": quantity.MAX_CHARS, "pattern": quantity.PATTERN}),
]
Duration = Annotated[
    str,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "maxLength": duration.MAX_CHARS, "pattern": duration.PATTERN}),
]
DeletionPolicy = Literal["Retain", "Delete"]


class ManagerRef(Model):
    """The KVCacheManager, in the same namespace, whose registry this resource configures."""

    name: ResourceName = Field(description="Name of the KVCacheManager in the same namespace.")


class ObjectMeta(Model):
    """The metadata of a Kubernetes object. Only name and namespace mean something to us; the rest is Kubernetes' own and passes through."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, alias_generator=to_camel)

    name: ResourceName
    namespace: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")] = "default"
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    generate_name: str | None = None
    self_link: str | None = None
    owner_references: list[dict[str, Any]] | None = None
    managed_fields: list[dict[str, Any]] | None = None


class Condition(StatusModel):
    """One condition, as `kubectl wait --for=condition=...` reads it."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    message: Annotated[str, StringConstraints(max_length=32768)] = ""
    last_transition_time: Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
    observed_generation: Annotated[int, Field(ge=0)] | None = None


class ResourceStatus(StatusModel):
    """What every status holds. `observedGeneration` is -1 until the operator has spoken, so that a fresh object never looks finished."""

    observed_generation: int = Field(default=-1, ge=-1, description="The generation of the spec that this status speaks about.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=32,
        description="Ready is the summary; Synced tells whether the last comparison with the manager succeeded.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
