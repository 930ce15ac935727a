"""One line per event, whatever is in it, and never a blocked caller."""

from __future__ import annotations

import io
import logging
import sys
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcm.service import logging_setup
from kvcm.service.logger_config import FileTarget, LoggerConfig, Route
from kvcm.service.logging_setup import LineFormatter, LineWriter, lines_to, set_up_logging
from kvcm.service.state_metrics import lost_log_lines

pytestmark = pytest.mark.unit
TURNING = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", *logging_setup.LOGS.values())]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def record(message: str, *args: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("kvcm.x", logging.WARNING, "file", 1, message, args, exc_info)  # type: ignore[arg-type]


def test_a_line_has_time_level_logger_and_text() -> None:
    line = LineFormatter().format(record("event key=%d", 7))
    assert line.startswith("time=")
    assert line.endswith("Z level=warn logger=kvcm.x event key=7")


def test_text_from_outside_cannot_make_a_second_line() -> None:
    line = LineFormatter().format(record("name=%s", "a\nlevel=error forged\r\x1b[31m"))
    assert "\n" not in line
    assert "\x1b" not in line
    assert "a\\nlevel=error forged\\r\\x1b[31m" in line


def test_no_character_of_strangers_ends_a_line_or_speaks_to_a_terminal() -> None:
    line = LineFormatter().format(record("name=%s", "".join(map(chr, range(0x3000))) + "\ud800"))
    assert len(line.splitlines()) == 1
    spoken = {unicodedata.category(char) for char in line} & {"Cc", "Zl", "Zp"} | {char for char in line if unicodedata.bidirectional(char) in TURNING}
    assert spoken == set()


def test_tracebacks_stay_on_the_line() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        line = LineFormatter().format(record("failed", exc_info=sys.exc_info()))
    assert "exception=Traceback" in line
    assert "\n" not in line


def test_long_lines_are_cut() -> None:
    line = LineFormatter().format(record("x" * 100_000))
    assert len(line) < logging_setup.MAX_LINE_CHARS + 10
    assert line.endswith("(cut)")
    assert LineFormatter(10, bare=True).format(record("y" * 11)) == "y" * 10 + " (cut)"


@pytest.mark.parametrize(("setting", "level"), [(0, logging.INFO), (1, logging.CRITICAL), (2, logging.ERROR), (3, logging.WARNING), (5, logging.DEBUG)])
def test_levels_follow_the_setting(setting: int, level: int) -> None:
    writer = set_up_logging(setting, io.StringIO())
    assert logging.getLogger().level == level
    writer.finish()


def test_lines_arrive_in_order_and_finish_waits_for_them() -> None:
    stream = io.StringIO()
    writer = set_up_logging(0, stream)
    for number in range(100):
        logging.getLogger("kvcm.t").info("n=%d", number)
    writer.finish()
    assert [line.rsplit("n=", 1)[1] for line in stream.getvalue().splitlines()] == [str(number) for number in range(100)]


class _Stuck(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.released.wait(10)
        return super().write(text)


def test_a_stuck_reader_costs_lines_not_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_setup, "MAX_WAITING_LINES", 5)
    stream = _Stuck()
    writer = LineWriter(stream)
    writer.setFormatter(LineFormatter())
    writer.emit(record("first"))
    assert stream.entered.wait(5)
    for number in range(20):
        writer.emit(record("n=%d", number))
    assert writer.dropped == 15
    stream.released.set()
    writer.finish()
    assert "lines_dropped=15" in stream.getvalue()


def test_lines_that_wait_are_bounded_by_their_size_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging_setup, "MAX_WAITING_CHARS", 1000)
    stream = _Stuck()
    writer = LineWriter(stream, bare=True)
    writer.write_lines(["first"], "x")
    assert stream.entered.wait(5)
    for _ in range(50):
        writer.write_lines(["a" * 100, "b" * 100], "x")
    assert writer.dropped == 90
    stream.released.set()
    writer.finish()
    writer.write_lines(["there is room again"], "x")
    assert "lines_dropped=90" in stream.getvalue()
    assert stream.getvalue().count("a" * 100) == 5


def test_a_log_whose_disk_is_full_is_an_error_in_the_service_log_and_counted(tmp_path: Path) -> None:
    (tmp_path / "access.log").symlink_to("/dev/full")
    stream = io.StringIO()
    config = LoggerConfig(logs={"access": Route(files=(FileTarget(str(tmp_path / "access.log")),), inherit=False)})
    before = lost_log_lines()
    logs = set_up_logging(0, stream, config)
    lines_to(logging_setup.LOGS["access"])(["{1}", "{2}"])
    for handler in logging.getLogger(logging_setup.LOGS["access"]).handlers:
        assert isinstance(handler, LineWriter)
        handler.finish()
    assert lost_log_lines() - before == 2
    logs.finish()
    assert "level=error logger=kvcm.service.logging log_file_failed" in stream.getvalue()


def test_finished_lines_go_as_one_block_to_the_handlers_of_their_logger() -> None:
    common, own = io.StringIO(), io.StringIO()
    writer = set_up_logging(0, common)
    lines_to("kvcm.test_lines")(["{1}", "{2}"])
    logger = logging.getLogger("kvcm.test_lines")
    file = LineWriter(own, bare=True)
    logger.addHandler(file)
    logger.propagate = False
    try:
        lines_to("kvcm.test_lines")(["{3}", "{4}"])
        logger.setLevel(logging.WARNING)
        lines_to("kvcm.test_lines")(["{5}"])
    finally:
        logger.removeHandler(file)
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    writer.finish()
    file.finish()
    assert common.getvalue() == "level=info logger=kvcm.test_lines {1}\nlevel=info logger=kvcm.test_lines {2}\n"
    assert own.getvalue() == "{3}\n{4}\n"


def test_finished_lines_reach_handlers_of_other_kinds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        lines_to("kvcm.test_other")(["{100%}"])
    assert "{100%}" in caplog.messages


def test_the_level_of_the_logger_file_holds_unless_a_setting_gives_one() -> None:
    config = LoggerConfig(Route(logging.ERROR))
    for setting, level in ((0, logging.ERROR), (5, logging.DEBUG)):
        logs = set_up_logging(setting, io.StringIO(), config)
        assert logging.getLogger().level == level
        logs.finish()


def test_each_log_goes_where_the_logger_file_sends_it(tmp_path: Path) -> None:
    service, access = tmp_path / "deep" / "kvcm.log", tmp_path / "access.log"
    config = LoggerConfig(
        Route(None, (FileTarget(str(service)),)),
        {
            "access": Route(logging.INFO, (FileTarget(str(access)),), inherit=False),
            "metrics": Route(logging.INFO, (FileTarget(f"{tmp_path}/deep/../deep/kvcm.log"),), inherit=False),
            "publisher": Route(logging.WARNING),
        },
    )
    stream = io.StringIO()
    logs = set_up_logging(0, stream, config)
    logging.getLogger("kvcm.x").info("hello")
    lines_to(logging_setup.LOGS["access"])(['{"api_name":"A"}'])
    logging.getLogger(logging_setup.LOGS["metrics"]).info("n=1")
    logging.getLogger(logging_setup.LOGS["publisher"]).info("too quiet")
    logging.getLogger(logging_setup.LOGS["publisher"]).warning("loud")
    logs.finish()
    assert stream.getvalue() == ""
    assert access.read_text(encoding="utf-8") == '{"api_name":"A"}\n'
    lines = [line.split("logger=")[1] for line in service.read_text(encoding="utf-8").splitlines()]
    assert lines == ["kvcm.x hello", "kvcm.metrics.report n=1", "kvcm.event.log loud"]


def test_with_the_console_the_service_log_is_in_both_places(tmp_path: Path) -> None:
    target = tmp_path / "kvcm.log"
    stream = io.StringIO()
    logs = set_up_logging(0, stream, LoggerConfig(Route(None, (FileTarget(str(target)),))), console=True)
    logging.getLogger("kvcm.x").info("hello")
    logs.finish()
    assert stream.getvalue() == target.read_text(encoding="utf-8")
    assert "hello" in stream.getvalue()


def test_a_log_file_that_cannot_be_opened_is_reported_and_its_lines_are_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    stream = io.StringIO()
    logs = set_up_logging(0, stream, LoggerConfig(Route(None, (FileTarget(f"{tmp_path}/file/kvcm.log"),))))
    logging.getLogger("kvcm.x").info("hello")
    logs.finish()
    assert "cannot be written: File exists. Its lines go to stderr." in stream.getvalue()
    assert "hello" in stream.getvalue()
