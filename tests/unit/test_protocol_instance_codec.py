"""Instances and block masks between messages and the domain (wire contract 4.3, 4.4)."""

from __future__ import annotations

from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.config.model import Instance, LocationSpecGroup, LocationSpecInfo, ModelDeployment, QueryType
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.domain_codec import (
    instance_from_info,
    instance_from_request,
    instance_to_info,
    instance_to_request,
    mask_from_proto,
    mask_of,
    mask_to_proto,
)
from kvcm.protocol.json_codec import json_to_message

pytestmark = pytest.mark.unit

BOTH = pytest.mark.parametrize("package", [meta, admin], ids=["meta", "admin"])
FULL = (
    b'{"instance_group":"default","instance_id":"i4","block_size":4,"default_query_type":"QT_PREFIX_MATCH",'
    b'"model_deployment":{"model_name":"m","dtype":"FP8","use_mla":true,"tp_size":2,"use_eagle_pop":true,"user_data":"u"},'
    b'"location_spec_infos":[{"name":"tp1","size":"1024"},{"name":"tp0","size":512}],'
    b'"location_spec_groups":[{"name":"g0","spec_names":["tp1","tp0"]},{"name":"all","spec_names":["tp1"]}]}'
)
INSTANCE = Instance(
    instance_id="i4",
    instance_group_name="default",
    quota_group_name="q",
    block_size=4,
    location_spec_infos=(LocationSpecInfo("tp1", 1024), LocationSpecInfo("tp0", 512)),
    model_deployment=ModelDeployment("m", "FP8", use_mla=True, tp_size=2, user_data="u", use_eagle_pop=True),
    location_spec_groups=(LocationSpecGroup("all", ("tp1",)), LocationSpecGroup("g0", ("tp0", "tp1"))),
    default_query_type=QueryType.PREFIX_MATCH,
)


@BOTH
def test_a_request_becomes_an_instance_with_sorted_groups_and_infos_in_order(package: Any) -> None:
    assert instance_from_request(json_to_message(FULL, package.RegisterInstanceRequest), "q") == INSTANCE


@BOTH
def test_info_and_request_give_the_instance_back(package: Any) -> None:
    info, request = package.InstanceInfo(), package.RegisterInstanceRequest(trace_id="t")
    instance_to_info(INSTANCE, info)
    instance_to_request(INSTANCE, request)
    assert instance_from_info(info) == INSTANCE
    assert instance_from_request(request, "q") == INSTANCE
    assert request.trace_id == "t"
    assert [group.name for group in info.location_spec_groups] == ["all", "g0"]


@BOTH
@pytest.mark.parametrize(
    ("body", "problems"),
    [
        (
            b"{}",
            "{RegisterInstance: {instance_group}{instance_id}{block_size}{model_deployment}{location_spec_infos}}",
        ),
        (FULL.replace(b'"block_size":4', b'"block_size":0'), "{RegisterInstance: {block_size}}"),
        (FULL.replace(b'"block_size":4', b'"block_size":-1'), "{RegisterInstance: {block_size}}"),
        (FULL.replace(b'"QT_PREFIX_MATCH"', b"99"), "{RegisterInstance: {default_query_type}}"),
        (FULL.replace(b'"model_name":"m","dtype":"FP8",', b""), "{ModelDeployment: {model_name}{dtype}}"),
        (FULL.replace(b'{"name":"tp0","size":512}', b'{"name":""},{}'), "index 1: {LocationSpecInfo: {name}}index 2: {LocationSpecInfo: {name}}"),
    ],
)
def test_everything_that_is_wrong_is_named(package: Any, body: bytes, problems: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        instance_from_request(json_to_message(body, package.RegisterInstanceRequest), "q")
    assert caught.value.message == f"missing or invalid fields: {problems}"


def test_sizes_and_duplicate_names_are_not_the_codecs_business() -> None:
    body = FULL.replace(b'"size":512', b'"size":-1').replace(b'"name":"tp0"', b'"name":"tp1"')
    infos = instance_from_request(json_to_message(body, meta.RegisterInstanceRequest), "q").location_spec_infos
    assert infos == (LocationSpecInfo("tp1", 1024), LocationSpecInfo("tp1", -1))


def test_an_info_with_an_unknown_query_type_is_refused() -> None:
    info = meta.InstanceInfo()
    info.default_query_type = 99  # type: ignore[assignment]
    with pytest.raises(InvalidArgument, match="default_query_type"):
        instance_from_info(info)


@BOTH
@pytest.mark.parametrize("mask", [0, 3, -1, (), (True,), (False, True, False)])
def test_masks_keep_their_form(package: Any, mask: Any) -> None:
    msg = package.BlockMask()
    mask_to_proto(list(mask) if isinstance(mask, tuple) else mask, msg)
    assert msg.WhichOneof("info") == ("offset" if isinstance(mask, int) else "bool_masks")
    assert mask_from_proto(package.BlockMask.FromString(msg.SerializeToString())) == mask


def test_an_absent_mask_is_none_and_an_empty_one_an_empty_list() -> None:
    request = meta.FinishWriteCacheRequest()
    assert mask_of(request, "success_blocks") is None
    request.success_blocks.SetInParent()
    assert mask_of(request, "success_blocks") == ()
    assert mask_of(meta.RemoveCacheRequest(block_mask=meta.BlockMask(offset=2))) == 2
