"""JSON bodies to messages (wire contract 3.4): what is accepted, what is HTTP 400, and that nothing recurses without a bound."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import debug_service_pb2 as debug
from kvcm.protocol import json_reader
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.protocol.json_codec import MAX_DEPTH, JsonBodyError, json_to_message

pytestmark = pytest.mark.unit


def read(body: str | bytes, cls: Any = meta.GetCacheLocationRequest) -> Any:
    return json_to_message(body.encode() if isinstance(body, str) else body, cls)


def test_an_empty_object_is_a_request_with_all_defaults() -> None:
    assert read("{}") == meta.GetCacheLocationRequest()
    assert read(b" \n{ } ") == meta.GetCacheLocationRequest()


def test_snake_case_and_camel_case_names_are_the_same_field() -> None:
    snake = read('{"trace_id":"t","block_keys":[1,-2],"block_mask":{"bool_masks":{"values":[true]}}}')
    camel = read('{"traceId":"t","blockKeys":["1","-2"],"blockMask":{"boolMasks":{"values":["true"]}}}')
    assert snake == camel
    assert list(snake.block_keys) == [1, -2]


def test_unknown_fields_are_ignored_whatever_they_hold() -> None:
    assert read('{"trace_id":"t","x":{"y":[1,{"z":null}]},"Trace_Id":3}') == meta.GetCacheLocationRequest(trace_id="t")


def test_the_last_of_two_equal_names_wins() -> None:
    assert read('{"trace_id":"a","trace_id":"b"}').trace_id == "b"
    assert read('{"trace_id":"a","traceId":"b"}').trace_id == "b"
    assert list(read('{"block_keys":[1],"blockKeys":[2]}').block_keys) == [2]
    assert read('{"block_mask":{"offset":3},"blockMask":{"bool_masks":{}}}').block_mask.WhichOneof("info") == "bool_masks"


def test_null_means_unset() -> None:
    msg = read('{"trace_id":null,"block_keys":null,"block_mask":null,"query_type":null}')
    assert msg == meta.GetCacheLocationRequest()
    assert not msg.HasField("block_mask")
    assert read('{"offset":null,"bool_masks":{"values":[]}}', meta.BlockMask).WhichOneof("info") == "bool_masks"


def test_presence_of_sub_messages_and_oneof_members_is_kept() -> None:
    msg = read('{"success_blocks":{}}', meta.FinishWriteCacheRequest)
    assert msg.HasField("success_blocks")
    assert msg.success_blocks.WhichOneof("info") is None
    assert read('{"success_blocks":{"offset":0}}', meta.FinishWriteCacheRequest).success_blocks.WhichOneof("info") == "offset"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('"QT_PREFIX_MATCH"', 2),
        ("2", 2),
        ('"2"', 2),
        ("2.0", 2),
        ("77", 77),
        ("-3", -3),
        ('"qt_prefix_match"', 0),
        ('"NO_SUCH"', 0),
        ('""', 0),
    ],
)
def test_enums_by_name_or_number_and_unknown_names_keep_the_default(text: str, number: int) -> None:
    assert read(f'{{"query_type":{text}}}').query_type == number


def test_the_upstream_fault_test_posts_a_name_that_is_no_member() -> None:
    body = '{"api_name":"A","fault_type":"INTERNAL_ERROR","fault_trigger_strategy":"ONCE","trigger_at_call":3}'
    msg = read(body, debug.InjectFaultRequest)
    assert (msg.fault_type, msg.fault_trigger_strategy, msg.trigger_at_call) == (debug.FT_INTERNAL_ERROR, debug.ONCE, 3)


def test_older_names_of_event_reporting_are_accepted() -> None:
    assert read('{"storage_type":"ST_VINEYARD"}', admin.QuotaConfig).storage_type == admin.ST_EVENT_REPORT_L1P5
    assert read('{"storage_type":"ST_EVENT_REPORT_L1P5"}', admin.QuotaConfig).storage_type == admin.ST_EVENT_REPORT_L1P5
    for name in ("event_reporting_storage_candidates", "eventReportingStorageCandidates", "event_report_storage_candidates"):
        assert list(read(f'{{"{name}":["e"]}}', admin.InstanceGroup).event_report_storage_candidates) == ["e"]
    assert read('{"strategies":[{"methods":{"copy":{"enabled":true}}}]}', admin.MigrationConfig).strategies[0].method_configs.copy.enabled


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("9223372036854775807", (1 << 63) - 1),
        ('"-9223372036854775808"', -(1 << 63)),
        ("1e3", 1000),
        ("5.0", 5),
        ('"007"', 7),
        ("-0", 0),
    ],
)
def test_64_bit_integers_as_numbers_or_decimal_texts(text: str, number: int) -> None:
    assert list(read(f'{{"block_keys":[{text}]}}').block_keys) == [number]
    assert read(f'{{"capacity":{text}}}', admin.QuotaConfig).capacity == number


@pytest.mark.parametrize(
    "text",
    [
        "9223372036854775808",
        '"9223372036854775808"',
        "-9223372036854775809",
        "9223372036854775807.0",
        "1.5",
        '"1.5"',
        '"1e3"',
        '""',
        '" 1"',
        '"1_0"',
        '"+1"',
        '"\u0661"',
        '"x"',
        "true",
        "{}",
        "[]",
        "1e400",
    ],
)
def test_what_is_not_a_64_bit_integer_is_refused(text: str) -> None:
    for body, cls in ((f'{{"capacity":{text}}}', admin.QuotaConfig), (f'{{"block_keys":[7,{text}]}}', meta.GetCacheLocationRequest)):
        with pytest.raises(JsonBodyError, match="must be a 64-bit integer"):
            read(body, cls)


@pytest.mark.parametrize("text", ["2147483648", "-2147483649", '"2147483648"', "0.5", "true", '"x"'])
def test_what_is_not_a_32_bit_integer_is_refused(text: str) -> None:
    with pytest.raises(JsonBodyError, match="field sw_size must be a 32-bit integer"):
        read(f'{{"sw_size":{text}}}')


def test_numbers_in_quotes_are_accepted_for_int32_and_double() -> None:
    assert read('{"sw_size":"-12"}').sw_size == -12
    assert read('{"used_percentage":"0.5"}', admin.TriggerStrategy).used_percentage == 0.5
    assert read('{"used_percentage":"1e-2"}', admin.TriggerStrategy).used_percentage == 0.01
    assert read('{"used_percentage":3}', admin.TriggerStrategy).used_percentage == 3.0
    assert math.isnan(read('{"used_percentage":"NaN"}', admin.TriggerStrategy).used_percentage)
    assert read('{"used_percentage":"-Infinity"}', admin.TriggerStrategy).used_percentage == -math.inf


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", '"1e999"', '"inf"', '"0x10"', '""', "true", "[1]", "1" * 400])
def test_what_is_not_a_double_is_refused(text: str) -> None:
    with pytest.raises(JsonBodyError):
        read(f'{{"used_percentage":{text}}}', admin.TriggerStrategy)


@pytest.mark.parametrize("text", ["1", "0", '"yes"', '"True"', '""', "[]"])
def test_what_is_not_a_bool_is_refused(text: str) -> None:
    with pytest.raises(JsonBodyError, match="field force_update must be true or false"):
        read(f'{{"force_update":{text}}}', admin.UpdateStorageRequest)


def test_bools_may_come_in_quotes() -> None:
    assert read('{"force_update":"true"}', admin.UpdateStorageRequest).force_update
    assert not read('{"force_update":"false"}', admin.UpdateStorageRequest).force_update


def test_wrappers_take_the_bare_value_and_null_leaves_them_absent() -> None:
    name = "persist_metadata_interval_time_ms"
    assert read(f'{{"{name}":"5"}}', admin.MetaIndexerConfig).persist_metadata_interval_time_ms.value == 5
    zero = read(f'{{"{name}":0}}', admin.MetaIndexerConfig)
    assert zero.HasField("persist_metadata_interval_time_ms")
    assert not read(f'{{"{name}":null}}', admin.MetaIndexerConfig).HasField("persist_metadata_interval_time_ms")
    with pytest.raises(JsonBodyError):
        read(f'{{"{name}":{{"value":1}}}}', admin.MetaIndexerConfig)


def test_maps_take_texts_only() -> None:
    assert dict(read('{"system_status":{"a":"1"}}', meta.HeartbeatEventParams).system_status) == {"a": "1"}
    for bad in ('{"system_status":{"a":null}}', '{"system_status":{"a":1}}', '{"system_status":["a"]}'):
        with pytest.raises(JsonBodyError):
            read(bad, meta.HeartbeatEventParams)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"trace_id":',
        b'{"trace_id":"t",}',
        b"{'trace_id':'t'}",
        b"null",
        b"[]",
        b"[{}]",
        b'"{}"',
        b"3",
        b"{}{}",
        b'{"trace_id":"\xff"}',
        b'{"trace_id":"\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
        '{"trace_id":"t"}'.encode("utf-16"),
        b'{"trace_id":"a\nb"}',
        b'{"trace_id":"\\ud800"}',
        b'{"trace_id":"\\uDC00x"}',
        b'{"unknown":"\\ud800"}',
        b'{"\\ud800":1}',
        b'{"trace_id":1}',
        b'{"trace_id":["t"]}',
        b'{"block_keys":1}',
        b'{"block_keys":{"0":1}}',
        b'{"block_keys":[null]}',
        b'{"block_mask":[]}',
        b'{"block_mask":"x"}',
        b'{"block_mask":{"offset":1,"bool_masks":{}}}',
        b'{"block_mask":{"boolMasks":{},"offset":0}}',
        b'{"sw_size":NaN}',
        b'{"unknown":NaN}',
        b'{"unknown":' + b"9" * 5000 + b"}",
    ],
)
def test_bodies_that_are_http_400(body: bytes) -> None:
    with pytest.raises(JsonBodyError) as caught:
        read(body)
    assert isinstance(caught.value, InvalidArgument)
    assert caught.value.message


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert read(b'{"trace_id":"\\ud83d\\ude00"}').trace_id == "\U0001f600"


def nested(depth: int) -> str:
    return '{"x":' * (depth - 1) + "{}" + "}" * (depth - 1)


def test_nesting_up_to_the_limit_is_accepted_and_beyond_it_refused() -> None:
    assert read(nested(MAX_DEPTH)) == meta.GetCacheLocationRequest()
    with pytest.raises(JsonBodyError, match="deeper than 100"):
        read(nested(MAX_DEPTH + 1))
    with pytest.raises(JsonBodyError, match="deeper than 100"):
        read('{"x":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}")


@pytest.mark.parametrize("unit", ["[", '{"a":', '{"block_mask":', "[{"])
def test_a_mountain_of_brackets_neither_overflows_nor_hangs(unit: str) -> None:
    with pytest.raises(JsonBodyError):
        read(unit * 100_000)


@pytest.mark.parametrize("unit", ["[],", "{},"])
def test_a_body_of_nothing_but_brackets_is_refused_before_it_is_read(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "MAX_CONTAINERS", 1000)
    assert read('{"x":[' + unit * 998 + "0]}") == meta.GetCacheLocationRequest()
    with pytest.raises(JsonBodyError, match="more than 1000 objects and lists"):
        read('{"x":[' + unit * 999 + "0]}")


def test_many_flat_lists_are_not_deep() -> None:
    body = json.dumps({"locations": [{"location_specs": [{"name": "a", "uri": "u"}]} for _ in range(300)]})
    assert len(read(body, meta.FinishWriteCacheRequest).locations) == 300


def test_the_error_names_the_path_of_the_field_and_never_its_value() -> None:
    body = '{"location_spec_infos":[{"name":"a"},{"name":"b","size":"secret"}]}'
    with pytest.raises(JsonBodyError) as caught:
        read(body, meta.RegisterInstanceRequest)
    assert caught.value.message == "field location_spec_infos[1].size must be a 64-bit integer"
    with pytest.raises(JsonBodyError, match=r"field block_mask\.bool_masks\.values\[2\] must be true or false"):
        read('{"block_mask":{"boolMasks":{"values":[true,false,"secret"]}}}')


def test_two_storage_kinds_at_once_are_refused_and_both_are_named() -> None:
    with pytest.raises(JsonBodyError, match=r"storage\.mooncake .*nfs is given too"):
        read('{"storage":{"nfs":{"root_path":"/a"},"mooncake":{}}}', admin.AddStorageRequest)
