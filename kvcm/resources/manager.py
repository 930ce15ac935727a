"""The custom resource `KVCacheManager`: the metadata service itself (design section 4).

Not in the model until they are built, so that setting them is an error and not a silent nothing: client certificates, monitoring, the optimizer. What is
refused across parts of the spec is refused by rules, not by the schema's bounds, because their sentences say why.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from kvcm.resources.base import API_VERSION, Model, ObjectMeta, Port, ResourceStatus, StatusModel
from kvcm.resources.duration import parse_duration
from kvcm.resources.manager_security import AdminToken, Tls
from kvcm.resources.manager_settings import LEASE_KEY, settings_problems
from kvcm.resources.manager_stores import Coordination, ManagerMetadata, RegistryStore
from kvcm.resources.pod import MAX_ENTRIES, Affinity, NodeSelector, PodAnnotations, PodLabels, PodResources, Toleration

MAX_REPLICAS = 9
MAX_SETTINGS = 64
# A StatefulSet's pods carry its name and a hash of ten characters in one label, and Services want a DNS label that begins with a letter.
MAX_MANAGER_NAME_CHARS = 52
_MANAGER_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
MANAGER_NAME_SENTENCE = (
    f"a manager's name must be at most {MAX_MANAGER_NAME_CHARS} lower-case letters, digits and '-', beginning with a letter, because its Services bear it"
)
SEVERAL_SENTENCE = "replicas above 1 need coordination.type etcd or redis, by which the managers elect a leader; with memory each of them would lead"
REGISTRY_SENTENCE = "replicas above 1 need the registry in etcd or redis, where whoever leads next finds it; without registry.type it is where the leases are"


def no_place(part: str, kind: str) -> str:
    """The sentence about a part of the spec that relies on coordination for a connection which that does not have."""
    return f"{part}.{kind} must be set when {part}.type is {kind} and coordination.type is not"


_IMAGE = r"^[a-z0-9][A-Za-z0-9._:/@-]*$"
# Lines of a configuration file: '#' begins a comment there, and blanks at the ends are lost.
_SETTING = r"^([^\s#]([^\r\n#]*[^\s#])?)?$"

PATTERN_SENTENCES = {
    _IMAGE: "must be the name of a container image, such as kvcm:1.0",
    _SETTING: "must be one line without '#' and without blanks at its ends",
}

_SettingValue = Annotated[str, StringConstraints(max_length=1024, pattern=_SETTING)]
EndpointText = Annotated[str, StringConstraints(max_length=512)]


class ServicePorts(Model):
    """Ports of the manager's pods and of its Services."""

    meta_grpc: Port = Field(default=6381, description="For engines, by gRPC.")
    meta_http: Port = Field(default=6382, description="For engines, by HTTP.")
    admin_grpc: Port = Field(default=6491, description="For administrators and the operator, by gRPC.")
    admin_http: Port = Field(default=6492, description="For administrators, by HTTP: the leader.")

    @model_validator(mode="after")
    def _all_different(self) -> ServicePorts:
        ports = (self.meta_grpc, self.meta_http, self.admin_grpc, self.admin_http)
        if len(set(ports)) != len(ports):
            raise ValueError("the four ports must differ")
        return self


class Service(Model):
    """How the manager is reached."""

    ports: ServicePorts = Field(default_factory=ServicePorts, description="Ports of the pods and of the Services.")


class KVCacheManagerSpec(Model):
    """One metadata service: one manager that leads, and others that take over when it goes."""

    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = Field(
        default=1, description="Pods of the manager, of which one leads; 0 stops it. More than 1 need coordination.type etcd or redis."
    )
    image: Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=_IMAGE)] | None = Field(
        default=None, description="Container image of the manager; the operator's own release when unset."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(default="IfNotPresent", description="When nodes fetch the image.")
    coordination: Coordination = Field(default_factory=Coordination, description="How managers agree on a leader.")
    registry: RegistryStore = Field(default_factory=RegistryStore, description="Where the manager keeps its storages, groups and instances.")
    metadata_backend: ManagerMetadata = Field(
        default_factory=ManagerMetadata, description="Where block metadata of groups is kept that do not say it themselves."
    )
    service: Service = Field(default_factory=Service, description="How the manager is reached.")
    admin_token: AdminToken = Field(default_factory=AdminToken, description="What callers of the admin ports must present.")
    tls: Tls | None = Field(default=None, description="TLS on all ports; plain text when unset.")
    resources: PodResources = Field(default_factory=PodResources, description="What a pod asks for and what it may use.")
    node_selector: NodeSelector = Field(default_factory=dict, description="Labels that a node must have.")
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=MAX_ENTRIES, strict=False)] = Field(
        default=(), description="Taints that the pods may meet.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    affinity: Affinity | None = Field(default=None, description="Where the pods want to be.")
    settings: Annotated[dict[str, _SettingValue], Field(max_length=MAX_SETTINGS)] = Field(
        default_factory=dict, description="Further settings of the manager, by their names in its configuration file. Changing them restarts the pods."
    )
    pod_labels: PodLabels = Field(default_factory=dict, description="Further labels of the pods.")
    pod_annotations: PodAnnotations = Field(default_factory=dict, description="Further annotations of the pods.")
    paused: bool = Field(default=False, description="The operator changes nothing while this is true.")

    @model_validator(mode="after")
    def _several_can_share(self) -> KVCacheManagerSpec:
        if self.replicas > 1 and self.coordination.type == "memory":
            raise ValueError(SEVERAL_SENTENCE)
        if self.replicas > 1 and self.registry.type in ("memory", "file"):
            raise ValueError(REGISTRY_SENTENCE)
        return self

    @model_validator(mode="after")
    def _connections(self) -> KVCacheManagerSpec:
        for kind in ("etcd", "redis"):
            if self.registry.type == kind != self.coordination.type and getattr(self.registry, kind) is None:
                raise ValueError(no_place("registry", kind))
        if self.metadata_backend.type == "redis" != self.coordination.type and self.metadata_backend.redis is None:
            raise ValueError(no_place("metadataBackend", "redis"))
        return self

    @field_validator("settings")
    @classmethod
    def _known_settings(cls, settings: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        coordination = info.data.get("coordination")  # missing where it is wrong itself
        lease = {LEASE_KEY: str(parse_duration(coordination.lease_duration))} if coordination is not None else {}
        problems = settings_problems(settings, lease)
        if problems:
            raise ValueError("; ".join(problems))
        return settings


class ManagerLeader(StatusModel):
    """Who leads."""

    pod: Annotated[str, StringConstraints(max_length=253)] | None = Field(default=None, description="Pod of the leader.")
    node_id: Annotated[str, StringConstraints(max_length=253)] | None = Field(default=None, description="The leader's own name.")
    epoch: int | None = Field(default=None, ge=0, description="Grows with every leader.")
    since: Annotated[str, StringConstraints(max_length=64)] | None = Field(default=None, description="When this leader was first seen.")


class ManagerHandover(StatusModel):
    """A leader that was asked to step down because its pod is to be replaced or stopped. Only paces the next time; nothing is lost with it."""

    pod: Annotated[str, StringConstraints(max_length=253)] | None = Field(default=None, description="Pod of the leader that was asked.")
    epoch: int | None = Field(default=None, ge=0, description="Of its leadership when it was asked.")
    asked_at: Annotated[str, StringConstraints(max_length=64)] | None = Field(default=None, description="When it was asked.")
    attempts: int | None = Field(default=None, ge=0, description="How often a leader has been asked since the last time that all was well.")


class ManagerEndpoints(StatusModel):
    """Addresses within the cluster, as host:port."""

    meta_grpc: EndpointText | None = Field(default=None, description="For engines, by gRPC.")
    meta_http: EndpointText | None = Field(default=None, description="For engines, by HTTP.")
    admin_grpc: EndpointText | None = Field(default=None, description="For administrators, by gRPC: the leader.")
    admin_http: EndpointText | None = Field(default=None, description="For administrators, health and metrics, by HTTP.")


class ManagerCounts(StatusModel):
    """What the manager holds."""

    storages: int | None = Field(default=None, ge=0, description="Registered storages.")
    groups: int | None = Field(default=None, ge=0, description="Registered instance groups.")
    instances: int | None = Field(default=None, ge=0, description="Registered instances of all groups.")


class KVCacheManagerStatus(ResourceStatus):
    """What the operator last saw."""

    replicas: int | None = Field(default=None, ge=0, description="Pods that exist.")
    ready_replicas: int | None = Field(default=None, ge=0, description="Pods that are ready.")
    updated_replicas: int | None = Field(default=None, ge=0, description="Pods that have the newest settings, image and volumes.")
    selector: Annotated[str, StringConstraints(max_length=1024)] | None = Field(default=None, description="Selects the pods, for scaling tools.")
    version: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Image of the pods; unset while they have different ones."
    )
    leader: ManagerLeader | None = Field(default=None, description="Who leads.")
    handover: ManagerHandover | None = Field(default=None, description="The leader that was asked to step down, while another one is waited for.")
    endpoints: ManagerEndpoints | None = Field(default=None, description="Addresses within the cluster.")
    counts: ManagerCounts | None = Field(default=None, description="What the manager holds.")


class KVCacheManagerResource(Model):
    """The metadata service of one set of engines."""

    api_version: Literal[API_VERSION]  # type: ignore[valid-type]  # a constant shared with the generator
    kind: Literal["KVCacheManager"]
    metadata: ObjectMeta
    spec: KVCacheManagerSpec
    status: KVCacheManagerStatus | None = None

    @field_validator("metadata")
    @classmethod
    def _name_for_services(cls, metadata: ObjectMeta) -> ObjectMeta:
        if len(metadata.name) > MAX_MANAGER_NAME_CHARS or not _MANAGER_NAME.match(metadata.name):
            raise ValueError(MANAGER_NAME_SENTENCE)
        return metadata
