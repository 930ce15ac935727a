"""Instances between the messages of the meta and admin packages and the domain (wire contract 2.1, 4.4).

Both packages declare the same shapes, so every function takes either. Spec groups leave here sorted by name, their spec names sorted too.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kvcm.config.model import Instance, LocationSpecGroup, LocationSpecInfo, ModelDeployment, QueryType
from kvcm.protocol.missing_fields import inside, named, refuse

_DEPLOYMENT_FIELDS = tuple(field.name for field in fields(ModelDeployment))


def instance_from_request(req: Any, quota_group_name: str) -> Instance:
    """The instance that a RegisterInstanceRequest describes. Raises MissingFields with everything that is wrong.

    `quota_group_name` is the group's at registration; it is not part of the request.
    """
    refuse(_request_problems(req))
    return _instance(req, req.instance_group, quota_group_name)


def instance_from_info(info: Any) -> Instance:
    """The instance that an InstanceInfo of a reply describes; nothing is required of it but a known query type."""
    refuse(inside("InstanceInfo", named(("default_query_type", _known_query(info.default_query_type)))))
    return _instance(info, info.instance_group_name, info.quota_group_name)


def instance_to_info(instance: Instance, info_msg: Any) -> None:
    """Fill an InstanceInfo."""
    info_msg.quota_group_name = instance.quota_group_name
    info_msg.instance_group_name = instance.instance_group_name
    _fill(instance, info_msg)


def instance_to_request(instance: Instance, req: Any) -> None:
    """Fill a RegisterInstanceRequest; its `trace_id` is left alone."""
    req.instance_group = instance.instance_group_name
    _fill(instance, req)


def _known_query(number: int) -> bool:
    return number in QueryType.__members__.values()


def _request_problems(req: Any) -> str:
    problems = inside(
        "RegisterInstance",
        named(
            ("instance_group", bool(req.instance_group)),
            ("instance_id", bool(req.instance_id)),
            ("block_size", req.block_size > 0),
            ("model_deployment", req.HasField("model_deployment")),
            ("location_spec_infos", len(req.location_spec_infos) > 0),
            ("default_query_type", _known_query(req.default_query_type)),
        ),
    )
    if req.HasField("model_deployment"):
        model = req.model_deployment
        problems += inside("ModelDeployment", named(("model_name", bool(model.model_name)), ("dtype", bool(model.dtype))))
    for index, info in enumerate(req.location_spec_infos):
        if not info.name:
            problems += f"index {index}: {{LocationSpecInfo: {{name}}}}"
    return problems


def _instance(msg: Any, group_name: str, quota_group_name: str) -> Instance:
    groups = [LocationSpecGroup(group.name, tuple(sorted(group.spec_names))) for group in msg.location_spec_groups]
    return Instance(
        instance_id=msg.instance_id,
        instance_group_name=group_name,
        quota_group_name=quota_group_name,
        block_size=msg.block_size,
        location_spec_infos=tuple(LocationSpecInfo(info.name, info.size) for info in msg.location_spec_infos),
        model_deployment=ModelDeployment(**{name: getattr(msg.model_deployment, name) for name in _DEPLOYMENT_FIELDS}),
        location_spec_groups=tuple(sorted(groups, key=lambda group: group.name)),
        default_query_type=QueryType(msg.default_query_type),
    )


def _fill(instance: Instance, msg: Any) -> None:
    msg.instance_id = instance.instance_id
    msg.block_size = instance.block_size
    msg.default_query_type = int(instance.default_query_type)
    for info in instance.location_spec_infos:
        msg.location_spec_infos.add(name=info.name, size=info.size)
    for group in instance.location_spec_groups:
        msg.location_spec_groups.add(name=group.name, spec_names=group.spec_names)
    deployment = msg.model_deployment
    for name in _DEPLOYMENT_FIELDS:
        setattr(deployment, name, getattr(instance.model_deployment, name))
    deployment.SetInParent()
