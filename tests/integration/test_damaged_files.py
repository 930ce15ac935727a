"""A manager whose files are damaged or out of reach says so in a sentence, changes nothing, and goes on where it can."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcm.common.errors import NotReady
from kvcm.service.testing import ManagerProcess
from kvcm.service.testing_story import startup_file
from kvcm.service.testing_wire import HttpWire, code, message

pytestmark = pytest.mark.integration


def nfs(name: str, root: str) -> dict[str, object]:
    return {"storage": {"global_unique_name": name, "nfs": {"root_path": root, "key_count_per_file": 1}}}


def without_epoch(content: bytes) -> bytes:
    """Where the damage lets it, a manager that means to lead writes its epoch first."""
    return re.sub(rb"epoch(\W+)[0-9]+", rb"epoch\1", content)


@pytest.mark.parametrize("damage", ["half", "garbage", "one byte"])
def test_a_damaged_registry_file_is_an_error_with_a_sentence_and_stays_as_it_is(tmp_path: Path, damage: str) -> None:
    registry = tmp_path / "registry"
    settings = {"kvcm.registry_storage.uri": f"local://{registry}", "kvcm.startup_config": startup_file(str(tmp_path))}
    with ManagerProcess(settings) as manager:
        assert code(HttpWire(manager.admin_http_url).call("AddStorage", nfs("second", f"{tmp_path}/second/"))) == "OK"
    whole = registry.read_bytes()
    damaged = {"half": whole[: len(whole) // 2], "garbage": b"\x00\xff" * 100, "one byte": whole.replace(b"second", b"secon\xff")}[damage]
    assert damaged != whole
    registry.write_bytes(damaged)
    broken = ManagerProcess(settings, ready_s=6)
    with pytest.raises(NotReady) as refused, broken:
        pass
    assert "Traceback" not in refused.value.message
    assert "registry" in refused.value.message.lower()
    assert without_epoch(registry.read_bytes()) == without_epoch(damaged)
    registry.write_bytes(whole)
    with ManagerProcess(settings) as manager:
        names = [storage["global_unique_name"] for storage in HttpWire(manager.admin_http_url).call("ListStorage", {})["storage"]]
        assert names == ["nfs_01", "second"]


@pytest.mark.parametrize("root", ["/proc/kvcm-not-there/", "/dev/null/kvcm/", "/sys/kvcm-not-there/"])
def test_a_root_that_cannot_be_written_is_refused_and_leaves_nothing_behind(tmp_path: Path, root: str) -> None:
    with ManagerProcess({"kvcm.startup_config": startup_file(str(tmp_path))}) as manager:
        admin = HttpWire(manager.admin_http_url)
        reply = admin.call("AddStorage", nfs("bad", root))
        assert code(reply) not in ("OK", "INTERNAL_ERROR")
        assert "bad" in message(reply)
        assert [storage["global_unique_name"] for storage in admin.call("ListStorage", {})["storage"]] == ["nfs_01"]
        assert code(admin.call("AddStorage", nfs("good", f"{tmp_path}/good/"))) == "OK"
        assert "Traceback" not in manager.log


def test_a_registry_that_cannot_be_written_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    manager = ManagerProcess({"kvcm.registry_storage.uri": "local:///proc/kvcm-not-there/registry"}, ready_s=6)
    with pytest.raises(NotReady) as refused, manager:
        pass
    assert "Traceback" not in refused.value.message
    assert "registry" in refused.value.message.lower()
