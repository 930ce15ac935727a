"""Storages between the admin messages and the domain (wire contract 2.1, 5.2).

The oneof member says what kind a storage is; `storage_type` only tells apart what one member cannot (event-report levels, SSD pools) and is
echoed in replies. A spec's domain fields carry the names of its message, so they are copied by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from kvcm.common.errors import Unsupported
from kvcm.data_storage.model import (
    DummySpec,
    EventReportSpec,
    Hf3fsSpec,
    MooncakeSpec,
    NfsSpec,
    Storage,
    StorageSpec,
    StorageType,
    TairMemPoolSpec,
    VcnsHf3fsSpec,
)
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol.missing_fields import inside, missing, named, refuse

SSD_MEDIA_TYPE = 5


@dataclass(frozen=True, slots=True)
class _Member:
    """One oneof member: the domain class behind it, the kinds it can mean (the first one when nothing says more), its required fields."""

    spec: type[Any]
    kinds: tuple[StorageType, ...]
    required: tuple[str, ...] = ()


_HF3FS_REQUIRED = ("mountpoint", "root_dir")
_EVENT_KINDS = (StorageType.EVENT_REPORT_L1P5, StorageType.EVENT_REPORT_L2)
_MEMBERS = {
    "nfs": _Member(NfsSpec, (StorageType.NFS,), ("root_path",)),
    "dummy": _Member(DummySpec, (StorageType.DUMMY,), ("root_path",)),
    "threefs": _Member(Hf3fsSpec, (StorageType.HF3FS,), _HF3FS_REQUIRED),
    "vcnsthreefs": _Member(VcnsHf3fsSpec, (StorageType.VCNS_HF3FS,), (*_HF3FS_REQUIRED, "remote_host", "meta_storage_uri")),
    "mooncake": _Member(MooncakeSpec, (StorageType.MOONCAKE,), ("local_hostname", "metadata_connstring", "protocol", "master_service_entry")),
    "tair_mem_pool": _Member(TairMemPoolSpec, (StorageType.TAIR_MEMPOOL, StorageType.TAIR_MEMPOOL_SSD), ("domain",)),
    "event_report": _Member(EventReportSpec, _EVENT_KINDS),
    # The older name of event_report: one level only, three timings.
    "vineyard": _Member(EventReportSpec, _EVENT_KINDS[:1]),
}
_MEMBER_BY_KIND = {kind: name for name, member in _MEMBERS.items() if name != "vineyard" for kind in member.kinds}


def storage_from_proto(msg: Any) -> Storage:
    """An admin StorageConfig as a storage that is enabled. Raises MissingFields with everything that is wrong."""
    member_name = msg.WhichOneof("storage_spec")
    member = _MEMBERS.get(member_name)
    problems = named(("global_unique_name", bool(msg.global_unique_name)), ("storage_spec", member is not None))
    if member is None:
        raise missing(inside("StorageConfig", problems))
    part = getattr(msg, member_name)
    kind = _kind(msg.storage_type, member_name, part)
    problems += named(("storage_type", kind is not None)) + inside(part.DESCRIPTOR.name, _spec_problems(member, part))
    refuse(inside("StorageConfig", problems))
    return Storage(
        name=msg.global_unique_name,
        type=kind or StorageType.UNSPECIFIED,
        spec=_spec(member, part),
        check_storage_available_when_open=msg.check_storage_available_when_open,
    )


def storage_from_reply(msg: Any) -> Storage:
    """A storage as a manager lists it, enabled. Nothing but its kind is required: records of older releases never passed the checks of a request.

    Raises MissingFields when this version knows no kind for it.
    """
    member_name = msg.WhichOneof("storage_spec")
    member = _MEMBERS.get(member_name)
    if member is None:
        raise missing(inside("StorageConfig", named(("storage_spec", False))))
    kind = next((kind for kind in member.kinds if kind == msg.storage_type), member.kinds[0])
    return Storage(
        name=msg.global_unique_name,
        type=kind,
        spec=_spec(member, getattr(msg, member_name)),
        check_storage_available_when_open=msg.check_storage_available_when_open,
    )


def storage_to_proto(storage: Storage, cls: type[Any] = admin.StorageConfig) -> Any:
    """A StorageConfig of package `cls`; what that package has no field for is left out.

    Whether a storage is enabled is not shown (wire contract 5.2). Raises Unsupported when the package has no member for the kind.
    """
    msg = cls()
    member = _MEMBER_BY_KIND[storage.type]
    if member not in msg.DESCRIPTOR.fields_by_name:
        raise Unsupported(f"storages of type {storage.type.type_name} cannot be written in this message")
    msg.global_unique_name = storage.name
    msg.check_storage_available_when_open = storage.check_storage_available_when_open
    if "storage_type" in msg.DESCRIPTOR.fields_by_name:
        msg.storage_type = int(storage.type)
    part = getattr(msg, member)
    part.SetInParent()
    for name in _shared_fields(type(storage.spec), part):
        setattr(part, name, getattr(storage.spec, name))
    return msg


def _shared_fields(spec: type[StorageSpec], part: Any) -> Iterable[str]:
    return (field.name for field in fields(spec) if field.name in part.DESCRIPTOR.fields_by_name)


def _kind(given: int, member_name: str, part: Any) -> StorageType | None:
    """The kind that the message means, None when `storage_type` is needed and missing, or contradicts the member."""
    kinds = _MEMBERS[member_name].kinds
    kind = next((kind for kind in kinds if kind == given), None)
    if member_name == "tair_mem_pool":
        wanted = StorageType.TAIR_MEMPOOL_SSD if part.media_type == SSD_MEDIA_TYPE else StorageType.TAIR_MEMPOOL
        return wanted if kind is wanted or (not given and wanted is StorageType.TAIR_MEMPOOL) else None
    if given or member_name == "event_report":
        return kind
    return kinds[0]


def _spec_problems(member: _Member, part: Any) -> str:
    problems = named(*((name, bool(getattr(part, name))) for name in member.required))
    if member.spec is VcnsHf3fsSpec:
        problems += named(("remote_port", 0 < part.remote_port < 1 << 16))
    if member.spec is EventReportSpec:
        problems += named(*((name, getattr(part, name) >= 0) for name in _shared_fields(EventReportSpec, part)))
    return problems


def _spec(member: _Member, part: Any) -> StorageSpec:
    values = {name: getattr(part, name) for name in _shared_fields(member.spec, part)}
    if member.spec is EventReportSpec:
        # 0 means "not given" for a timing.
        values = {name: value for name, value in values.items() if value}
    if "key_count_per_file" in values:
        values["key_count_per_file"] = max(1, values["key_count_per_file"])
    spec: StorageSpec = member.spec(**values)
    return spec
