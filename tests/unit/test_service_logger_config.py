"""The logger file of `-l`: upstream's dialect is read, nothing in it keeps a manager from starting, everything is bounded."""

from __future__ import annotations

import logging

import pytest

from kvcm.config.errors import SettingsError
from kvcm.service.logger_config import MAX_APPENDERS, MAX_FILE_MIB, MAX_KEPT_FILES, OFF, FileTarget, LoggerConfig, Route, parse_logger_config

pytestmark = pytest.mark.unit

KNOWN = ("access", "metrics")


def read(*lines: str) -> LoggerConfig:
    return parse_logger_config("\n".join(lines), KNOWN)


def test_levels_files_and_bounds_are_taken_over() -> None:
    config = read(
        "# a comment",
        "alog.rootLogger=WARN, main, shell",
        "alog.max_msg_len=204800",
        "alog.appender.main=FileAppender",
        "alog.appender.main.fileName=logs/kvcm.log # where",
        "alog.appender.main.max_file_size=512",
        "alog.appender.main.log_keep_count=20",
        "alog.appender.shell=ConsoleAppender",
        "alog.logger.access=DEBUG, requests",
        "inherit.access=false",
        "alog.appender.requests=FileAppender",
        "alog.appender.requests.fileName=access.log",
        "alog.logger.metrics=DISABLE",
        "alog.logger.console=INFO, shell",
    )
    assert config.warnings == ()
    assert config.root == Route(logging.WARNING, (FileTarget("logs/kvcm.log", 512 << 20, 20),), console=True)
    assert config.logs == {"access": Route(logging.DEBUG, (FileTarget("access.log"),), inherit=False), "metrics": Route(OFF)}
    assert config.max_line_chars == 204_800


def test_an_empty_file_asks_for_nothing() -> None:
    assert read("", "  ", "#") == LoggerConfig()


def test_what_is_not_acted_on_is_one_warning() -> None:
    config = read(
        "alog.rootLogger=INFO, a",
        "alog.appender.a=FileAppender",
        "alog.appender.a.fileName=x",
        "alog.appender.a.layout=PatternLayout",
        "alog.appender.a.layout.LogPattern=[%%d] %%m",
        "alog.appender.a.flush=true",
        "alog.appender.a.compress=true",
    )
    assert config.root.files == (FileTarget("x"),)
    (warning,) = config.warnings
    assert "compress, flush, layout, layout.LogPattern" in warning


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["nonsense"], "line 1 is not of the form"),
        (["colour=red"], "'colour' is not known"),
        (["alog.rootLogger=LOUD"], "'LOUD' is not a level"),
        (["alog.rootLogger=INFO, missing"], "'missing' is neither"),
        (["alog.rootLogger=INFO, a", "alog.appender.a=SyslogAppender"], "'a' is neither"),
        (["alog.rootLogger=INFO, a", "alog.appender.a=FileAppender"], "no fileName"),
        (["alog.logger.other=INFO"], "no log of the name 'other'"),
        (["alog.max_msg_len=many"], "must be a whole number"),
        (["inherit.access=maybe"], "neither 'true' nor 'false'"),
        ([f"alog.appender.a{number}=ConsoleAppender" for number in range(MAX_APPENDERS + 1)], "more than"),
    ],
)
def test_what_is_not_understood_is_a_warning_and_never_an_error(lines: list[str], sentence: str) -> None:
    config = read(*lines)
    assert any(sentence in warning for warning in config.warnings)
    assert config.root.files == ()


@pytest.mark.parametrize(
    ("size", "kept", "target"), [("0", "0", (MAX_FILE_MIB, MAX_KEPT_FILES)), ("-1", "9999", (MAX_FILE_MIB, MAX_KEPT_FILES)), ("x", "y", (100, 10))]
)
def test_every_file_is_bounded_whatever_the_text_says(size: str, kept: str, target: tuple[int, int]) -> None:
    config = read(
        "alog.rootLogger=INFO, a",
        "alog.appender.a=FileAppender",
        "alog.appender.a.fileName=x",
        f"alog.appender.a.max_file_size={size}",
        f"alog.appender.a.log_keep_count={kept}",
    )
    assert config.root.files == (FileTarget("x", target[0] << 20, target[1]),)
    assert len(config.warnings) == 2


def test_a_text_that_is_no_such_file_is_refused() -> None:
    with pytest.raises(SettingsError, match="longer than"):
        parse_logger_config("#" * (1 << 20) + "#", KNOWN)
