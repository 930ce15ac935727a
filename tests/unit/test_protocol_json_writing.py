"""Messages to JSON (wire contract 3.3), and the cost of a large body."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.json_codec import json_to_message, message_to_json, message_to_plain

pytestmark = pytest.mark.unit


def test_defaults_and_lists_are_printed_unset_messages_are_not() -> None:
    assert message_to_json(meta.GetClusterInfoResponse()) == b'{"self_node_id":"","leader_node_id":""}'
    assert message_to_json(meta.GetHostCacheStateResponse(hosts=[meta.HostCacheMatch()])) == (
        b'{"hosts":[{"host_ip_port":"","local":"0","p2p_1_fetch":"0","p2p_1_total_match":"0"}]}'
    )
    assert message_to_json(meta.HeartbeatEventParams()) == b'{"system_status":{}}'
    assert message_to_json(meta.ReportEventResponse(item_results=[meta.OK, meta.SNAPSHOT_REQUIRED])) == (
        b'{"item_results":["OK","SNAPSHOT_REQUIRED"],"committed_snapshot_version":"","retry_after_ms":"0","snapshot_required":false,"extra_info":""}'
    )


def test_an_enum_number_without_a_name_is_printed_as_a_number() -> None:
    location = meta.CacheLocation()
    location.type = 77  # type: ignore[assignment]
    assert message_to_json(location) == b'{"type":77,"spec_size":0,"location_specs":[]}'


def test_own_extensions_show_only_when_they_hold_something() -> None:
    reply = meta.GetCacheLocationResponse()
    assert message_to_json(reply) == b'{"locations":[]}'
    reply.checksums.extend([0, 9])
    assert message_to_json(reply) == b'{"locations":[],"checksums":["0","9"]}'
    assert b"want_checksums" not in message_to_json(meta.GetCacheLocationRequest())
    assert b'"want_checksums":true' in message_to_json(meta.GetCacheLocationRequest(want_checksums=True))
    assert b"checksums" not in message_to_json(meta.FinishWriteCacheRequest())
    assert b"disabled_storage_names" not in message_to_json(admin.ListStorageResponse())


def test_presence_of_an_optional_enum_is_kept() -> None:
    assert b"budget_policy" not in message_to_json(admin.CacheReclaimStrategy())
    given = admin.CacheReclaimStrategy(instance_reclaim_budget_policy=admin.USAGE_PROPORTIONAL)
    assert b'"instance_reclaim_budget_policy":"USAGE_PROPORTIONAL"' in message_to_json(given)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (0.8, "0.8"),
        (3.0, "3"),
        (-2.0, "-2"),
        (3.2, "3.2"),
        (1e300, "1e+300"),
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
    ],
)
def test_doubles(number: float, text: str) -> None:
    assert message_to_json(admin.TriggerStrategy(used_percentage=number)).decode() == f'{{"used_size":"0","used_percentage":{text}}}'


def test_a_set_oneof_member_is_printed_even_at_its_default() -> None:
    for field, text in (("int_value", '"0"'), ("float_value", "0"), ("string_value", '""')):
        value = admin.MetricValue()
        setattr(value, field, type(getattr(value, field))())
        assert message_to_json(value).decode() == f'{{"{field}":{text}}}'
    assert message_to_json(admin.MetricValue()) == b"{}"


def test_wrappers_print_their_bare_value() -> None:
    config = admin.MigrationConfig()
    config.copy_max_concurrency.value = 3
    config.copy_max_inflight_bytes.value = 1 << 63
    config.copy_query_timeout_ms.SetInParent()
    plain = message_to_plain(config)
    assert plain["copy_max_concurrency"] == 3
    assert plain["copy_max_inflight_bytes"] == str(1 << 63)
    assert plain["copy_query_timeout_ms"] == "0"
    assert "copy_submit_timeout_ms" not in plain


def test_texts_are_utf_8_and_escaped_where_json_needs_it() -> None:
    msg = meta.LocationSpec(name='a"\\\n\u2028\U0001f600', uri="é")
    assert json.loads(message_to_json(msg)) == {"name": msg.name, "uri": "é"}
    assert "é".encode() in message_to_json(msg)


def test_a_request_and_a_reply_of_1000_blocks_come_through_whole() -> None:
    body = json.dumps({"block_keys": [str(key) for key in range(1000)], "block_mask": {"bool_masks": {"values": [True] * 1000}}})
    request: Any = json_to_message(body.encode(), meta.GetCacheLocationRequest)
    assert list(request.block_keys) == list(range(1000))
    reply = meta.GetCacheLocationResponse()
    for key in range(1000):
        reply.locations.add(type=meta.ST_NFS, spec_size=1).location_specs.add(name="tp0", uri=f"file://n/{key}")
    assert json_to_message(message_to_json(reply), meta.GetCacheLocationResponse) == reply
