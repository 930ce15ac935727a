"""Upstream's command line: what the C library accepts is accepted, what is not known is ignored with a warning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcm.cli.drop_in import main
from kvcm.cli.upstream_options import UpstreamOptions, parse_options

pytestmark = pytest.mark.unit

FULL = UpstreamOptions("a.conf", "b.conf", ["k=v", "k2=a=b"], True)


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "a.conf", "-l", "b.conf", "-e", "k=v", "-e", "k2=a=b", "-d"],
        ["--config_file", "a.conf", "--log_config_file", "b.conf", "--env", "k=v", "--env", "k2=a=b", "--daemon"],
        ["--config_file=a.conf", "--log_config_file=b.conf", "--env=k=v", "--env=k2=a=b", "--daemon"],
        ["-ca.conf", "-lb.conf", "-ek=v", "-dek2=a=b"],
        ["--conf", "a.conf", "--log=b.conf", "--en", "k=v", "--e=k2=a=b", "--dae"],
    ],
)
def test_every_spelling_of_an_option_is_understood(words: list[str]) -> None:
    assert parse_options(words) == FULL


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nonsense"], "the option --nonsense is not known and is ignored"),
        (["--"], ""),
        (["-x"], "the option -x is not known and is ignored"),
        (["-xd"], "the option -x is not known and is ignored"),
        (["word"], "the argument 'word' is not an option and is ignored"),
        (["-"], "the argument '-' is not an option and is ignored"),
        (["--", "-d"], "the argument '-d' is not an option and is ignored"),
        (["--daemon=yes"], "the option --daemon takes no value and is ignored"),
        (["-c"], "the option -c needs a value and is ignored"),
        (["--env"], "the option --env needs a value and is ignored"),
        (["--=x"], "the option -- is not known and is ignored"),
    ],
)
def test_what_is_not_known_is_ignored_with_a_warning(words: list[str], sentence: str) -> None:
    found = parse_options(words)
    assert found.warnings == ([sentence] if sentence else [])
    assert (found.end, found.config_file, found.env, found.daemon) == ("", "", [], words == ["-xd"])


def test_options_after_other_words_count() -> None:
    assert parse_options(["word", "-e", "k=v"]).env == ["k=v"]
    assert parse_options(["--unknown", "value", "-d"]).daemon


@pytest.mark.parametrize(
    ("words", "end"),
    [(["-h"], "help"), (["--help"], "help"), (["-v"], "version"), (["--vers"], "version"), (["-e", "novalue"], "env"), (["-dv", "--nonsense"], "version")],
)
def test_help_version_and_a_malformed_setting_end_the_reading(words: list[str], end: str) -> None:
    found = parse_options(words)
    assert found.end == end
    assert found.warnings == []


@given(st.lists(st.text(max_size=12), max_size=8))
def test_no_command_line_is_too_odd(words: list[str]) -> None:
    found = parse_options(words)
    assert all("=" in pair for pair in found.env)


@pytest.mark.parametrize(("words", "text"), [(["-h"], "usage: kv_cache_manager_bin"), (["-v"], "kvcm "), (["-e", "x"], "key=value")])
def test_help_and_version_are_on_stderr_with_code_one(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
