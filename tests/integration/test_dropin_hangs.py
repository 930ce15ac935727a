"""A manager whose logs or threads hang in a system call: calls are served, and it ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvcm.service.testing_dropin import script
from kvcm.service.testing_wire import HttpWire, code

pytestmark = pytest.mark.integration

CLEAN = {key: value for key, value in os.environ.items() if not key.lower().startswith("kvcm")}
LOGGER = """
alog.rootLogger=INFO, service
alog.appender.service=FileAppender
alog.appender.service.fileName=service.log
alog.logger.access=INFO, access
inherit.access=false
alog.appender.access=FileAppender
alog.appender.access.fileName=hangs
"""
PIPE_BYTES = 64 << 10


@pytest.mark.parametrize("what", ["file", "stderr"])
def test_a_log_that_hangs_costs_lines_and_neither_calls_nor_the_end(what: str, tmp_path: Path) -> None:
    """A pipe that nobody reads stands for a disk that does not answer."""
    os.mkfifo(tmp_path / "hangs")
    unread = os.open(tmp_path / "hangs", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "logger.conf").write_text(LOGGER, encoding="utf-8")
    logs = ["-l", "logger.conf"] if what == "file" else ["-e", "kvcm.access_log.enabled=true"]
    command = [str(script()), *logs, "-e", "kvcm.service.bind_host=127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=CLEAN) as manager:
        try:
            assert manager.stdout is not None
            own = json.loads(manager.stdout.readline().removeprefix(b"kvcm is ready: "))
            wire = HttpWire(f"http://127.0.0.1:{own['meta_http_port']}")
            for _ in range(2 * PIPE_BYTES // 500):
                assert code(wire.call("GetClusterInfo", {"trace_id": "t" * 250})) == "OK"
            manager.send_signal(signal.SIGTERM)
            assert manager.wait(30) == 0
        finally:
            manager.kill()
            os.close(unread)


def test_a_thread_that_hangs_does_not_keep_a_process_that_has_stopped() -> None:
    """As a pool's thread in a file system that does not answer; the interpreter would wait for it for ever."""
    text = """
import threading
from concurrent.futures import ThreadPoolExecutor
from kvcm.service.run import leave_in_time
started = threading.Event()
def hang():
    started.set()
    threading.Event().wait()
ThreadPoolExecutor(1).submit(hang)
started.wait()
leave_in_time(3, 0.1)
"""
    assert subprocess.run([sys.executable, "-c", text], timeout=30, check=False).returncode == 3
