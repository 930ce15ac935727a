"""What upstream's own tests assert of the meta service (wire contract 8.3, `meta_interface_cases`), against the drop-in, over HTTP and over gRPC.

Reports of hosts that keep their blocks themselves: `test_upstream_report_event`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kvcm.service.testing_dropin import DropIn
from kvcm.service.testing_wire import META, GrpcWire, HttpWire, Wire, code, message

pytestmark = pytest.mark.integration

MODEL = {"model_name": "model", "dtype": "FP8", "use_mla": False, "tp_size": 1, "dp_size": 1, "lora_name": "", "pp_size": 1, "extra": "", "user_data": "mine"}


@pytest.fixture(scope="module")
def drop_in() -> Iterator[DropIn]:
    with DropIn() as manager:
        yield manager


@pytest.fixture(params=["http", "grpc"])
def wire(request: pytest.FixtureRequest, drop_in: DropIn) -> Wire:
    return HttpWire(drop_in.http_url) if request.param == "http" else GrpcWire(drop_in.meta_address, META)


@pytest.fixture
def instance(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return "".join(char if char.isalnum() else "_" for char in request.node.name)


def registration(instance: str, **changes: Any) -> dict[str, Any]:
    fields = {
        "trace_id": "register",
        "instance_group": "default",
        "instance_id": instance,
        "block_size": 128,
        "model_deployment": MODEL,
        "location_spec_infos": [{"name": "tp0", "size": 1024}],
    }
    return fields | changes


def register(wire: Wire, instance: str) -> None:
    reply = wire.call("RegisterInstance", registration(instance))
    assert code(reply) == "OK", reply


def write(wire: Wire, instance: str, keys: list[int]) -> list[Any]:
    """Start and finish a write of all of `keys`; the locations of its start."""
    started = wire.call("StartWriteCache", {"trace_id": "start", "instance_id": instance, "block_keys": keys, "write_timeout_seconds": 30})
    assert code(started) == "OK"
    finished = wire.call(
        "FinishWriteCache",
        {
            "trace_id": "finish",
            "instance_id": instance,
            "write_session_id": started["write_session_id"],
            "success_blocks": {"bool_masks": {"values": [True] * len(keys)}},
        },
    )
    assert code(finished) == "OK"
    locations: list[Any] = started["locations"]
    return locations


def prefix(wire: Wire, instance: str, keys: list[int], mask: dict[str, Any]) -> dict[str, Any]:
    request = {"trace_id": "get", "query_type": "QT_PREFIX_MATCH", "instance_id": instance, "block_keys": keys, "block_mask": mask}
    return wire.call("GetCacheLocation", request)


def test_a_written_block_is_found_where_it_was_to_be_written(wire: Wire, instance: str) -> None:
    register(wire, instance)
    locations = write(wire, instance, [123])
    found = prefix(wire, instance, [123], {"offset": 0})
    assert code(found) == "OK"
    assert found["locations"] == locations
    assert len(locations) == 1


def test_an_instance_is_registered_once_and_again_but_not_differently(wire: Wire, instance: str) -> None:
    for _ in range(2):
        reply = wire.call("RegisterInstance", registration(instance))
        assert code(reply) == "OK"
        assert len(json.loads(reply["storage_configs"])) > 0
    other = wire.call("RegisterInstance", registration(instance, model_deployment=MODEL | {"model_name": "another"}))
    assert code(other) != "OK"
    assert "storage_configs" in other
    assert code(wire.call("RegisterInstance", registration(f"{instance}_2", instance_group="nowhere"))) != "OK"


def test_an_instance_is_described_as_it_was_registered(wire: Wire, instance: str) -> None:
    assert code(wire.call("GetInstanceInfo", {"trace_id": "info", "instance_id": f"not_{instance}"})) != "OK"
    reply = wire.call("RegisterInstance", registration(instance, default_query_type="QT_REVERSE_ROLL_SW_MATCH"))
    assert code(reply) == "OK"
    reply = wire.call("GetInstanceInfo", {"trace_id": "info", "instance_id": instance})
    assert code(reply) == "OK"
    assert reply["instance_group"] == "default"
    info = reply["instance_info"]
    assert info["default_query_type"] == "QT_REVERSE_ROLL_SW_MATCH"
    deployment = info["model_deployment"]
    assert {key: deployment[key] for key in MODEL} == MODEL


def test_locations_of_unknown_instances_unknown_keys_and_masked_keys(wire: Wire, instance: str) -> None:
    assert code(prefix(wire, f"not_{instance}", [1], {"offset": 0})) != "OK"
    register(wire, instance)
    assert code(prefix(wire, instance, [999], {"offset": 0})) == "OK"
    write(wire, instance, [1, 2, 3])
    masked = prefix(wire, instance, [1, 2, 3], {"bool_masks": {"values": [True, True, True]}})
    assert code(masked) == "OK"
    assert masked.get("locations", []) == []
    assert len(prefix(wire, instance, [1, 2, 3], {"offset": 0})["locations"]) == 3


def test_a_refused_registration_says_what_is_wrong(wire: Wire, instance: str) -> None:
    for size in (0, -1):
        reply = wire.call("RegisterInstance", registration(instance, block_size=size))
        assert code(reply) == "INVALID_ARGUMENT"
        assert "block_size" in message(reply)
    unknown = wire.call("RegisterInstance", registration(instance, instance_group="group_of_nobody"))
    assert code(unknown) != "OK"
    assert "group_of_nobody" in message(unknown)

    register(wire, instance)
    model = wire.call("RegisterInstance", registration(instance, model_deployment=MODEL | {"tp_size": 2}))
    assert code(model) == "DUPLICATE_ENTITY"
    assert instance in message(model)
    assert "model_deployment" in message(model)
    blocks = wire.call("RegisterInstance", registration(instance, block_size=64))
    assert code(blocks) == "DUPLICATE_ENTITY"
    assert "block_size" in message(blocks)


def test_cluster_info_names_this_node_as_the_leader_with_its_meta_ports(wire: Wire, instance: str, drop_in: DropIn) -> None:
    for request in ({"trace_id": "who"}, {"trace_id": "who", "instance_id": f"not_{instance}"}):
        reply = wire.call("GetClusterInfo", request)
        assert code(reply) == "OK"
        assert reply["self_node_id"] == reply["leader_node_id"] != ""
        endpoint = reply["leader_endpoint"]
        assert set(endpoint) == {"node_id", "host", "meta_rpc_port", "meta_http_port", "custom_info"}
        assert (endpoint["meta_rpc_port"], endpoint["meta_http_port"]) == (drop_in.endpoint.meta_rpc_port, drop_in.endpoint.meta_http_port)
        assert endpoint["host"] != ""


def test_details_tell_served_blocks_from_unknown_ones(wire: Wire, instance: str) -> None:
    register(wire, instance)
    write(wire, instance, [123])
    reply = wire.call("GetCacheMetaDetail", {"trace_id": "detail", "instance_id": instance, "block_keys": [123, 456]})
    assert code(reply) == "OK"
    served, unknown = reply["items"]
    assert (served["request_index"], served["block_key"], served["status"]["code"]) == (0, "123", "OK")
    assert (unknown["request_index"], unknown["block_key"]) == (1, "456")
    assert "CLS_SERVING" in json.dumps(served)
    assert "CLS_NOT_FOUND" in json.dumps(unknown)
