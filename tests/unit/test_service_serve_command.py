"""What `kvcm serve` does before and around the server: default ports, configuration, the port file."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from kvcm.cli import serve
from kvcm.cli.main import main
from kvcm.cli.manager_process import write_in_one_step
from kvcm.common.errors import InvalidArgument
from kvcm.config.settings_load import load_settings
from kvcm.service.malloc_tuning import tune_malloc

pytestmark = pytest.mark.unit


def ports(text: str, *env: str) -> tuple[int, int, int, int]:
    loaded = load_settings(text, env, {}, serve.DEFAULT_PORTS)
    assert loaded.warnings == ()
    found = loaded.settings
    return found.service_rpc_port, found.service_http_port, found.service_admin_rpc_port, found.service_admin_http_port


def test_ports_have_the_packaged_defaults_unless_they_are_given() -> None:
    assert ports("") == (6381, 6382, 6491, 6492)
    assert ports("kvcm.service.rpc_port=7 # note\nkvcm.service.admin_rpc_port = 0") == (7, 6382, 0, 6492)
    assert ports("kvcm.service.rpc_port=7", "kvcm.service.rpc_port=0", "kvcm.service.http_port=9") == (0, 9, 6491, 6492)


def test_messages_about_the_file_keep_its_line_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "conf"
    config.write_text("# one\nkvcm.logger.log_level=4\nnonsense\n", encoding="utf-8")
    assert main(["serve", "-c", str(config)]) == 1
    assert "Line 3" in capsys.readouterr().err


def test_a_configuration_that_is_not_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "conf"
    config.write_bytes(b"\xff\xfe\x00")
    assert main(["serve", "-c", str(config)]) == 1
    assert "not UTF-8" in capsys.readouterr().err


def test_the_port_file_appears_in_one_step(tmp_path: Path) -> None:
    target = tmp_path / "ports.json"
    write_in_one_step(target, '{"a": 1}')
    assert target.read_text(encoding="utf-8") == '{"a": 1}\n'
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(InvalidArgument, match="port file"):
        write_in_one_step(tmp_path / "absent" / "ports.json", "{}")


def test_the_command_is_registered() -> None:
    parser = argparse.ArgumentParser()
    serve.register(parser.add_subparsers())
    options = parser.parse_args(["serve", "-e", "a=1", "--env", "b=2", "-c", "file", "--port-file", "p"])
    assert options.run is serve.run
    assert (options.env, options.config_file, options.port_file) == (["a=1", "b=2"], "file", "p")


def test_tuning_the_allocator_never_fails() -> None:
    assert tune_malloc() in (True, False)


@pytest.mark.parametrize("key", ["kvcm.registry_storage.uri", "kvcm.coordination.uri"])
@pytest.mark.parametrize("uri", ["", "etcd://127.0.0.1:2379/kvcm", "redis://127.0.0.1:1/?cluster_name=x"])
def test_what_is_checked_before_the_process_is_copied_starts_no_thread_and_loads_no_grpc(key: str, uri: str) -> None:
    text = f"""
import sys, threading
from kvcm.cli.manager_process import Start, _settings
_settings(Start("kvcm", env=("{key}={uri}",)), None)
assert threading.active_count() == 1, threading.enumerate()
assert "grpc" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
