"""A registry file with damaged instances: the manager starts, serves the others, and serves all again when the file is whole (wire contract 1.4, 8.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcm.common.errors import NotReady
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_wire import ADMIN, META, GrpcWire, HttpWire, Wire, code

pytestmark = pytest.mark.integration

KEYS = [1, 2]


def _register(meta: Wire, instance_id: str) -> None:
    reply = meta.call(
        "RegisterInstance",
        {
            "instance_group": "default",
            "instance_id": instance_id,
            "block_size": 4,
            "model_deployment": {"model_name": "m", "dtype": "FP8", "tp_size": 1, "dp_size": 1, "pp_size": 1},
            "location_spec_infos": [{"name": "tp0", "size": 64}],
        },
    )
    assert code(reply) == "OK", reply


def _write_and_read(meta: Wire, instance_id: str) -> None:
    started = meta.call("StartWriteCache", {"instance_id": instance_id, "block_keys": KEYS, "write_timeout_seconds": 30})
    assert code(started) == "OK", started
    done = {"instance_id": instance_id, "write_session_id": started["write_session_id"], "success_blocks": {"bool_masks": {"values": [True] * len(KEYS)}}}
    assert code(meta.call("FinishWriteCache", done)) == "OK"
    found = meta.call("GetCacheLocation", {"instance_id": instance_id, "query_type": "QT_PREFIX_MATCH", "block_keys": KEYS})
    assert found["locations"] == started["locations"]


def test_damaged_instances_do_not_stop_the_others_and_come_back_with_their_records(tmp_path: Path) -> None:
    file = tmp_path / "registry.json"
    with ManagerProcess({"kvcm.registry_storage.uri": f"local://{file}"}) as manager:
        for name in ("hurt_a", "hurt_b", "well"):
            _register(HttpWire(manager.http_url), name)
            _write_and_read(GrpcWire(manager.meta_address, META), name)
        manager.stop()

        whole: dict[str, Any] = json.loads(file.read_text())
        hurt = [key for key in whole if "hurt_" in key]
        assert {name for key in hurt for name in ("hurt_a", "hurt_b") if name in key} == {"hurt_a", "hurt_b"}
        file.write_text(json.dumps({**whole, **dict.fromkeys(hurt, "garbage {{{")}))
        manager.start()
        meta: Wire = HttpWire(manager.http_url)
        _write_and_read(meta, "well")
        for name in ("hurt_a", "hurt_b"):
            assert code(meta.call("GetInstanceInfo", {"instance_id": name})) == "INSTANCE_NOT_EXIST"
        admin = GrpcWire(manager.admin_address, ADMIN)
        left_out = json.loads(admin.call("GenConfigSnapshot", {})["config_snapshot"])["left_out"]
        assert {(item["table"], item["id"]) for item in left_out} == {("instance", "hurt_a"), ("instance", "hurt_b")}
        # What it writes leaves the damaged records as they are.
        _register(meta, "new")
        assert {key: json.loads(file.read_text())[key] for key in hurt} == dict.fromkeys(hurt, "garbage {{{")
        manager.stop()

        now: dict[str, Any] = json.loads(file.read_text())
        file.write_text(json.dumps({**now, **{key: whole[key] for key in hurt}}))
        manager.start()
        meta = GrpcWire(manager.meta_address, META)
        for name in ("hurt_a", "hurt_b", "well", "new"):
            _write_and_read(meta, name)


def test_a_file_that_is_no_json_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "registry.json"
    with ManagerProcess({"kvcm.registry_storage.uri": f"local://{file}"}) as manager:
        _register(HttpWire(manager.http_url), "i")
        manager.stop()
        text = file.read_text()
        file.write_text(text[: len(text) // 2])
        with pytest.raises(NotReady, match="not a JSON object; restore it from a backup"):
            manager.start()
        assert "Traceback" not in manager.log
        file.write_text(text)
        manager.start()
        _write_and_read(HttpWire(manager.http_url), "i")
