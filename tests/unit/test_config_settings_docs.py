"""What is written about settings is true: the table of the documentation and the packaged files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import kvcm.service
from kvcm.config import settings_docs
from kvcm.config.settings import Settings, setting_keys
from kvcm.config.settings_help import MEANINGS
from kvcm.config.settings_load import load_settings
from kvcm.config.startup import default_group, default_storage, read_startup
from kvcm.service.logger_config import parse_logger_config
from kvcm.service.logging_setup import LOGS

pytestmark = pytest.mark.unit

ETC = Path(kvcm.service.__file__).parent / "etc"


def test_every_key_has_one_sentence_and_no_sentence_has_lost_its_key() -> None:
    assert set(MEANINGS) == set(setting_keys())
    assert [key for key, meaning in MEANINGS.items() if not re.fullmatch(r"[^\n|]+\.", meaning)] == []


def test_page_and_packaged_file_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert settings_docs.main(["--check"]) == 0, capsys.readouterr().err


def test_a_page_without_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="marks"):
        settings_docs.page("nothing")


def test_the_packaged_settings_start_a_manager_without_a_warning() -> None:
    loaded = load_settings((ETC / "default_server_config.conf").read_text(encoding="utf-8"), [], {})
    assert loaded.warnings == ()
    ports = replace(Settings(), service_rpc_port=6381, service_http_port=6382, service_admin_rpc_port=6491, service_admin_http_port=6492)
    assert replace(loaded.settings, access_log_with_payload=ports.access_log_with_payload) == ports


def test_every_commented_value_of_the_packaged_settings_is_the_one_that_holds() -> None:
    text = (ETC / "default_server_config.conf").read_text(encoding="utf-8")
    commented = re.findall(r"^#(kvcm\.[a-z_0-9.]+=.*)$", text, re.MULTILINE)
    active = re.findall(r"^(kvcm\.[a-z_0-9.]+)=", text, re.MULTILINE)
    assert {line.split("=")[0] for line in commented} | set(active) == set(setting_keys())
    assert load_settings("\n".join(commented), [], {}).settings == load_settings(None, [], {}).settings


def test_the_packaged_logger_file_has_nothing_to_warn_about() -> None:
    config = parse_logger_config((ETC / "default_logger_config.conf").read_text(encoding="utf-8"), tuple(LOGS))
    assert config.warnings == ()
    assert [target.path for target in config.root.files] == ["logs/kv_cache_manager.log"]
    assert {name: [target.path for target in route.files] for name, route in config.logs.items()} == {
        "access": ["logs/access.log"],
        "metrics": ["logs/metrics.log"],
        "publisher": ["logs/event_publisher.log"],
    }
    assert not any(route.inherit for route in config.logs.values())


def test_the_packaged_startup_file_is_the_built_in_pair() -> None:
    storage, group = read_startup(str(ETC / "default_startup_config.json"))
    assert storage == default_storage()
    assert group is not None
    assert replace(group, user_data=default_group().user_data) == default_group()
