"""`kvcm call` before anything is sent: finding the RPC, and requests that people mistype."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from kvcm.cli import call
from kvcm.cli import main as cli
from kvcm.common.errors import InvalidArgument
from kvcm.protocol import admin_service_pb2, debug_service_pb2, meta_service_pb2

pytestmark = pytest.mark.unit


def test_every_rpc_of_the_three_services_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["call", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    modules = (meta_service_pb2, admin_service_pb2, debug_service_pb2)
    assert len(listed) == sum(len(service.methods) for module in modules for service in module.DESCRIPTOR.services_by_name.values()) == 14 + 32 + 3
    assert {"meta/GetCacheLocation", "admin/AddStorage", "debug/ClearFaults"} <= set(listed)


def test_names() -> None:
    assert call._find("meta/GetClusterInfo") == ("meta", "GetClusterInfo")
    assert call._find("kv_cache_manager.proto.debug.DebugService/ClearFaults") == ("debug", "ClearFaults")
    for text, sentence in (
        ("meta/getClusterInfo", r"did you mean GetClusterInfo\?"),
        ("meta/Nothing", "has no RPC Nothing"),
        ("GetClusterInfo", "does not begin with one of meta/, admin/, debug/"),
        ("other/X", "does not begin"),
    ):
        with pytest.raises(InvalidArgument, match=sentence):
            call._find(text)


def test_a_request_is_read_as_the_json_api_reads_it() -> None:
    request = call._request(
        meta_service_pb2.GetCacheLocationRequest,
        '{"instanceId": "i", "query_type": "QT_PREFIX_MATCH", "block_keys": [1, "-2"], "block_mask": {"bool_masks": {"values": [true]}}}',
    )
    assert (request.instance_id, list(request.block_keys), request.query_type) == ("i", [1, -2], 2)
    event = '{"events": [{"event_type": 5, "heartbeat": {"system_status": {"any key": "1"}}}]}'
    assert call._request(meta_service_pb2.ReportEventRequest, event).events[0].heartbeat.system_status == {"any key": "1"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "cannot be read as GetCacheLocationRequest"),
        ('{"instance": "i"}', "has no field 'instance'; it has trace_id, instance_id"),
        ('{"query_type": "PREFIX"}', "has no value 'PREFIX'; it has QT_UNSPECIFIED"),
        ('{"block_mask": {"offest": 1}}', r"GetCacheLocationRequest.block_mask has no field 'offest'"),
        ('{"block_keys": [1.5]}', "cannot be read"),
        ('{"block_keys": ["\\ud800"]}', "cannot be read"),
    ],
)
def test_typing_errors_are_sentences(text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        call._request(meta_service_pb2.GetCacheLocationRequest, text)


def test_where_the_request_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "request.json").write_text('{"a": 1}')
    assert call._text(f"@{tmp_path}/request.json") == '{"a": 1}'
    assert call._text('{"b": 2}') == '{"b": 2}'
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"c": 3}'))
    assert call._text("-") == '{"c": 3}'
    with pytest.raises(InvalidArgument, match="cannot be read"):
        call._text(f"@{tmp_path}/missing")


def test_errors_of_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["call"]) == 1
    assert "SERVICE/METHOD" in capsys.readouterr().err
    monkeypatch.setenv("KVCM_META", "nowhere")
    assert cli.main(["call", "meta/GetClusterInfo"]) == 1
    assert capsys.readouterr().err == "error: KVCM_META must be host:port, such as 127.0.0.1:6381\n"
