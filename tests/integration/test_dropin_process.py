"""The drop-in as a process: started, found, stopped and restarted as upstream's harness does it, and configured by upstream's rules."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvcm.service
from kvcm.service.testing_dropin import PROGRAM, DropIn, command_lines, script
from kvcm.service.testing_wire import ADMIN, META, GrpcWire, HttpWire, code

pytestmark = pytest.mark.integration

CLEAN = {key: value for key, value in os.environ.items() if not key.lower().startswith("kvcm")}
INSTANCE = {
    "trace_id": "t",
    "instance_group": "default",
    "block_size": 8,
    "model_deployment": {"model_name": "m", "dtype": "FP8", "tp_size": 1},
    "location_spec_infos": [{"name": "tp0", "size": 1024}],
}


@pytest.fixture(scope="module")
def drop_in() -> Iterator[DropIn]:
    with DropIn() as manager:
        yield manager


def foreground(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([script(), *arguments], capture_output=True, text=True, cwd=cwd, env=CLEAN, timeout=60, check=False)


@pytest.fixture
def reap() -> Iterator[Callable[[str], int]]:
    """Takes what a manager in the background has printed; it is stopped after the test."""
    pids: list[int] = []

    def note(text: str) -> int:
        pids.append(json.loads(text[text.index("{") :].splitlines()[0])["pid"])
        return pids[-1]

    yield note
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}/fd/0").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def matching(port: int) -> list[str]:
    return [line for _, line in command_lines() if PROGRAM in line and f"rpc_port={port}" in line]


def test_it_is_started_found_stopped_and_started_again_as_upstreams_harness_does() -> None:
    with DropIn() as manager:
        print(f"\nstart to leadership: {manager.serving_s:.2f} s, of which the shell {manager.shell_s:.2f} s")
        assert manager.serving_s < 30
        first = manager.endpoint
        assert len(matching(first.meta_rpc_port)) == 1
        wire = HttpWire(manager.http_url)
        assert code(wire.call("RegisterInstance", INSTANCE | {"instance_id": "gone"})) == "OK"
        pid = manager.pid
        assert manager.stop() == 0
        assert [line for number, line in command_lines() if number == pid and PROGRAM in line] == []

        manager.start()
        assert manager.endpoint.meta_rpc_port != first.meta_rpc_port
        reply = HttpWire(manager.http_url).call("GetInstanceInfo", {"trace_id": "t", "instance_id": "gone"})
        assert code(reply) == "INSTANCE_NOT_EXIST"
        manager.kill()
        assert manager.wait() == -signal.SIGKILL
        manager.start()
    assert matching(manager.endpoint.meta_rpc_port) == []


def test_its_command_line_has_the_name_and_the_ports_in_order(drop_in: DropIn) -> None:
    own = drop_in.endpoint
    ports = (own.meta_rpc_port, own.meta_http_port, own.admin_rpc_port, own.admin_http_port)
    pattern = PROGRAM + "".join(f".*{port}" for port in ports)
    (line,) = matching(own.meta_rpc_port)
    assert re.search(pattern, line)
    if shutil.which("pgrep"):
        found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, timeout=20, check=True)
        assert found.stdout.split() == [str(drop_in.pid)]


def test_it_keeps_folder_and_output_and_has_no_terminal(drop_in: DropIn) -> None:
    proc = Path(f"/proc/{drop_in.pid}")
    assert Path(os.readlink(proc / "cwd")) == drop_in.workdir
    assert [os.readlink(proc / "fd" / str(number)) for number in range(3)] == [
        "/dev/null",
        str(drop_in.workdir / "stdout"),
        str(drop_in.workdir / "stderr"),
    ]
    fields = (proc / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    session, terminal = int(fields[3]), int(fields[4])
    assert session not in (drop_in.pid, os.getsid(0))
    assert terminal == 0


def test_nobody_who_waits_for_an_inherited_file_waits_for_the_manager(tmp_path: Path, reap: Callable[[str], int]) -> None:
    reading, writing = os.pipe()
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run([script(), "-d"], stdout=out, stderr=out, cwd=tmp_path, env=CLEAN, pass_fds=[writing], timeout=60, check=False)
    os.close(writing)
    assert done.returncode == 0
    pid = reap((tmp_path / "out").read_text(encoding="utf-8").partition("ready: ")[2])
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert Path(f"/proc/{pid}").exists()


def test_the_built_in_storage_and_group_are_there(drop_in: DropIn) -> None:
    admin = GrpcWire(drop_in.admin_address, ADMIN)
    (storage,) = admin.call("ListStorage", {"trace_id": "t"})["storage"]
    assert storage["global_unique_name"] == "nfs_01"
    assert storage["nfs"] == {"root_path": "/tmp/nfs/", "key_count_per_file": 8}
    group = admin.call("GetInstanceGroup", {"trace_id": "t", "name": "default"})["instance_group"]
    assert group["storage_candidates"] == ["nfs_01"]
    assert group["quota"]["capacity"] == "30000000000"


def test_what_is_referenced_may_be_removed_as_upstream_does() -> None:
    with DropIn() as manager:
        admin = HttpWire(manager.admin_http_url)
        assert code(GrpcWire(manager.meta_address, META).call("RegisterInstance", INSTANCE | {"instance_id": "i"})) == "OK"
        assert code(admin.call("RemoveInstanceGroup", {"trace_id": "t", "name": "default"})) == "OK"
        assert code(admin.call("RemoveStorage", {"trace_id": "t", "storage_unique_name": "nfs_01"})) == "OK"


@pytest.mark.parametrize("daemon", [[], ["-d"]])
@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (["-c", "/nowhere/server.conf"], 255, "cannot be read"),
        (["-c", "broken.conf"], 255, "Line 2"),
        (["-l", "/nowhere/logger.conf"], 255, "cannot be read"),
        (["-e", "kvcm.service.rpc_port=many"], 255, "whole number"),
        (["-e", "kvcm.service.http_port=7", "-e", "kvcm.service.admin_http_port=7"], 255, "must differ"),
        (["-e", "kvcm.registry_storage.uri=nowhere://x"], 255, "unknown scheme"),
        (["-e", "kvcm.coordination.uri=nowhere://x"], 255, "unknown scheme"),
        (["-e", "kvcm.coordination.uri=etcd://x"], 255, "host:port"),
        (["-e", "kvcm.registry_storage.uri=raft://x"], 255, "not part of this version"),
        (["-e", "kvcm.startup_config=/nowhere/startup.json"], 255, "startup configuration"),
        (["-e", "nonsense"], 1, "key=value"),
        (["-h"], 1, "usage"),
        (["-v"], 1, "kvcm"),
    ],
)
def test_what_cannot_be_used_ends_the_foreground(arguments: list[str], exit_code: int, sentence: str, daemon: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.conf").write_text("kvcm.logger.log_level=4\nnonsense\n", encoding="utf-8")
    done = foreground(*daemon, *arguments, cwd=tmp_path)
    assert done.returncode == exit_code
    assert sentence in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("daemon", "exit_code"), [([], 1), (["-d"], 0)])
def test_a_start_that_fails_later_is_said(daemon: list[str], exit_code: int, tmp_path: Path) -> None:
    (tmp_path / "logger.conf").write_text(UPSTREAM_LOGGER, encoding="utf-8")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        done = foreground(*daemon, "-l", "logger.conf", "-e", f"kvcm.service.http_port={taken.getsockname()[1]}", cwd=tmp_path)
    assert done.returncode == exit_code
    assert "cannot be opened for HTTP" in done.stderr
    assert "start_failed: Port" in (tmp_path / "deep" / "logs" / "server.log").read_text(encoding="utf-8")
    assert ("the manager ended during its start" in done.stderr) == bool(daemon)


def test_sources_go_before_one_another_and_what_is_not_known_is_ignored(tmp_path: Path) -> None:
    config = tmp_path / "server.conf"
    config.write_text(
        "kvcm.service.custom_info = from-file # a note\nkvcm.leader_elector.node_id=from-file\nkvcm.service.advertised_host=192.0.2.7\nkvcm.colour=red\n",
        encoding="utf-8",
    )
    settings = {"kvcm.leader_elector.node_id": "first", "kvcm.service.custom_info": "from-env"}
    arguments = ["-c", str(config), "--nonsense", "word", "-e", "kvcm.leader_elector.node_id=second", "--env=kvcm.shape=round"]
    environ = {"kvcm_service_custom_info": "from-process", "kvcm.colour": "blue"}
    with DropIn(settings, arguments, environ) as manager:
        reply = HttpWire(manager.http_url).call("GetClusterInfo", {"trace_id": "t"})
        log = manager.log
    assert reply["leader_node_id"] == "first"
    assert reply["leader_endpoint"]["custom_info"] == "from-process"
    assert reply["leader_endpoint"]["host"] == "192.0.2.7"
    assert "kv_cache_manager_bin: warning: the option --nonsense is not known" in log
    for key, source in (("kvcm.colour", "the configuration file"), ("kvcm.shape", "--env")):
        assert f"level=warn logger=kvcm.manager Unknown key '{key}' in {source} is ignored." in log


# In upstream's dialect: its keys, none of them ours, with values that its packaged files or its documentation would have.
UPSTREAM_SETTINGS = """\
# a server
kvcm.registry_storage.uri=
kvcm.distributed_lock.uri=memory://
kvcm.leader_elector.lease_ms=10000
kvcm.leader_elector.loop_interval_ms=100
kvcm.service.io_thread_num=4
kvcm.service.enable_debug_service=false
kvcm.logger.log_level=4   # info
kvcm.schedule_plan_executor_thread_count=8
kvcm.schedule_plan_migration_worker_budget=3
kvcm.meta_query.worker_count=4
kvcm.cache_reclaimer.key_sampling_size_total=1000
kvcm.cache_reclaimer.idle_interval_ms=100
kvcm.cache_gc.enabled=true
kvcm.metrics.reporter_type=local
kvcm.metrics.report_interval_ms=20000
kvcm.metrics.revisit_interval_buckets=1,5,30
kvcm.event.event_publishers_configs={"log":{"enable":true,"queue_size":10000}}
kvcm.some.later.key=1
"""
UPSTREAM_LOGGER = """\
alog.rootLogger=INFO, main
alog.max_msg_len=100000
alog.appender.main=FileAppender
alog.appender.main.fileName=deep/logs/server.log
alog.appender.main.layout=PatternLayout
alog.appender.main.layout.LogPattern=[%%d] %%m
alog.appender.main.async_flush=true
alog.appender.main.compress=false
alog.appender.main.max_file_size=100
alog.appender.main.log_keep_count=5
alog.logger.elsewhere=INFO, main
inherit.elsewhere=false
"""


def test_configuration_in_upstreams_dialect_starts_it_with_warnings_only(tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text(UPSTREAM_SETTINGS, encoding="utf-8")
    (tmp_path / "logger.conf").write_text(UPSTREAM_LOGGER, encoding="utf-8")
    with DropIn(arguments=["-c", str(tmp_path / "server.conf"), "-l", str(tmp_path / "logger.conf")]) as manager:
        log = (manager.workdir / "deep" / "logs" / "server.log").read_text(encoding="utf-8")
        assert "time=" not in manager.log
    assert "level=error" not in log
    for key in ("kvcm.service.io_thread_num", "kvcm.schedule_plan_migration_worker_budget", "kvcm.cache_gc.enabled", "kvcm.some.later.key"):
        assert log.count(key) == 1
    assert "kvcm.schedule_plan_executor_thread_count" not in log
    assert "async_flush, compress, layout, layout.LogPattern: not acted on" in log
    assert "there is no log of the name 'elsewhere'" in log


def test_the_packaged_files_fill_a_log_each_for_service_calls_events_and_metrics() -> None:
    etc = Path(kvcm.service.__file__).parent / "etc"
    settings = {
        "kvcm.event.event_publishers_configs": '{"log":{"enable":true}}',
        "kvcm.metrics.reporter_type": "logging",
        "kvcm.metrics.report_interval_ms": "50",
        "kvcm.startup_config": str(etc / "default_startup_config.json"),
    }
    with DropIn(settings, ["-c", str(etc / "default_server_config.conf"), "-l", str(etc / "default_logger_config.conf")]) as manager:
        wire = HttpWire(manager.http_url)
        assert code(wire.call("RegisterInstance", INSTANCE | {"instance_id": "logged"})) == "OK"
        started = wire.call("StartWriteCache", {"trace_id": "t", "instance_id": "logged", "block_keys": [1], "write_timeout_seconds": 30})
        assert code(started) == "OK"
        assert manager.stop() == 0
        assert manager.log.count("\n") == 1, "only the line that says it is ready"
        logs = {path.name: path.read_text(encoding="utf-8").splitlines() for path in (manager.workdir / "logs").iterdir()}
    assert set(logs) == {"kv_cache_manager.log", "access.log", "event_publisher.log", "metrics.log"}
    assert [json.loads(line)["api_name"] for line in logs["access.log"]][-2:] == ["RegisterInstance", "StartWriteCache"]
    assert [json.loads(line)["type"] for line in logs["event_publisher.log"]] == ["StartWriteCache"]
    assert "service.query_counter" in "".join(logs["metrics.log"])
    assert all(line.startswith("time=") for line in logs["kv_cache_manager.log"])


def test_the_console_and_the_level_of_the_environment_count(tmp_path: Path) -> None:
    (tmp_path / "logger.conf").write_text(UPSTREAM_LOGGER, encoding="utf-8")
    environ = {"KVCM_LOG_TO_CONSOLE": "1", "KVCM_LOG_LEVEL": "WARN"}
    with DropIn(arguments=["-l", str(tmp_path / "logger.conf"), "-e", "kvcm.colour=red"], environ=environ) as manager:
        for log in (manager.log, (manager.workdir / "deep" / "logs" / "server.log").read_text(encoding="utf-8")):
            assert "kvcm.colour" in log
            assert "level=info" not in log


def test_kvcm_serve_goes_into_the_background_too_and_is_strict(tmp_path: Path, reap: Callable[[str], int]) -> None:
    ports = [f"-ekvcm.service.{name}_port=0" for name in ("rpc", "admin_rpc", "admin_http")]
    command = [str(Path(sys.executable).with_name("kvcm")), "serve", *ports]
    ready = tmp_path / "ports.json"
    done = subprocess.run(
        [*command, "-ekvcm.service.http_port=0", "-d", "--port-file", ready],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=CLEAN,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    reap(ready.read_text(encoding="utf-8"))
    port = json.loads(ready.read_text(encoding="utf-8"))["meta_http_port"]
    assert code(HttpWire(f"http://127.0.0.1:{port}").call("GetClusterInfo", {"trace_id": "t"})) == "OK"

    for arguments, exit_code, sentence in (
        ([f"-ekvcm.service.http_port={port}", "-d"], 1, "ended during its start"),
        (["-x"], 1, "unrecognized arguments: -x"),
        (["-v"], 0, "kvcm "),
    ):
        ended = subprocess.run([*command, *arguments], capture_output=True, text=True, env=CLEAN, timeout=60, check=False)
        assert ended.returncode == exit_code
        assert sentence in ended.stderr + ended.stdout
