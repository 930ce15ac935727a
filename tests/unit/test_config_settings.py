"""Settings: sources and their order, upstream's parsing rules, warnings, constraints."""

from __future__ import annotations

import pytest

from kvcm.config.errors import SettingsError
from kvcm.config.settings import Settings, setting_keys
from kvcm.config.settings_load import load_settings

pytestmark = pytest.mark.unit


def test_without_any_source_the_defaults_hold_and_nothing_is_warned_about() -> None:
    loaded = load_settings(None, [], {})
    assert loaded.settings == Settings()
    assert loaded.warnings == ()


def test_the_environment_beats_arguments_which_beat_the_file() -> None:
    file = "kvcm.service.rpc_port=1\nkvcm.service.http_port=2\nkvcm.service.admin_http_port=3\n"
    environ = {"kvcm_service_admin_http_port": "30"}
    settings = load_settings(file, ["kvcm.service.http_port=20", "kvcm.service.admin_http_port=29"], environ).settings
    assert (settings.service_rpc_port, settings.service_http_port, settings.service_admin_http_port) == (1, 20, 30)


def test_the_dotted_environment_name_beats_the_underscored_one_and_empty_counts_as_unset() -> None:
    both = {"kvcm.service.rpc_port": "5", "kvcm_service_rpc_port": "6"}
    assert load_settings(None, [], both).settings.service_rpc_port == 5
    both["kvcm.service.rpc_port"] = ""
    assert load_settings(None, [], both).settings.service_rpc_port == 6
    both["kvcm_service_rpc_port"] = ""
    assert load_settings("kvcm.service.rpc_port=7", [], both).settings.service_rpc_port == 7


def test_comments_may_start_anywhere_and_blanks_are_trimmed() -> None:
    settings = load_settings("# head\n\n  kvcm.service.custom_info =  blue # not green\n", [], {}).settings
    assert settings.service_custom_info == "blue"


def test_the_first_of_a_repeated_argument_wins_and_only_the_first_equals_sign_splits() -> None:
    settings = load_settings(None, ["kvcm.service.custom_info=a=b", "kvcm.service.custom_info=c"], {}).settings
    assert settings.service_custom_info == "a=b"


@pytest.mark.parametrize(("text", "value"), [("8", 8), (" +8", 8), ("0008", 8), ("8080abc", 8080)])
def test_numbers_are_read_like_in_c(text: str, value: int) -> None:
    loaded = load_settings(None, [f"kvcm.service.rpc_port={text}"], {})
    assert loaded.settings.service_rpc_port == value
    assert bool(loaded.warnings) == text.endswith("abc")


@pytest.mark.parametrize("text", ["", "abc", "-", "0x", "99999999999999999999", "9" * 5000, "٣"])
def test_a_number_that_cannot_be_read_stops_the_start(text: str) -> None:
    if text == "0x":
        assert load_settings(None, ["kvcm.service.rpc_port=0x"], {}).settings.service_rpc_port == 0
        return
    with pytest.raises(SettingsError, match=r"kvcm\.service\.rpc_port"):
        load_settings(f"kvcm.service.rpc_port={text}", [], {})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("True", False), ("1", False), ("yes", False)])
def test_only_the_literal_true_is_true(text: str, value: bool) -> None:
    loaded = load_settings(None, [f"kvcm.metrics.enable_prometheus={text}"], {})
    assert loaded.settings.metrics_enable_prometheus is value
    assert bool(loaded.warnings) == (text not in ("true", "false"))


@pytest.mark.parametrize("line", ["kvcm.service.rpc_port", "=5", "just words"])
def test_a_line_without_key_and_value_stops_the_start(line: str) -> None:
    with pytest.raises(SettingsError, match="Line 2"):
        load_settings(f"# one\n{line}\n", [], {})
    with pytest.raises(SettingsError, match="--env"):
        load_settings(None, [line], {})


def test_unknown_keys_are_named_in_warnings() -> None:
    loaded = load_settings("kvcm.colour=red\n", ["kvcm.shape=round"], {"kvcm.size": "big"})
    assert loaded.settings == Settings()
    assert len(loaded.warnings) == 2
    assert "'kvcm.colour'" in loaded.warnings[0]
    assert "'kvcm.shape'" in loaded.warnings[1]


def test_a_key_that_is_not_acted_on_warns_once_unless_nothing_is_lost() -> None:
    loaded = load_settings("kvcm.cache_gc.enabled=true\nkvcm.service.enable_debug_service=false\n", [], {})
    assert [text for text in loaded.warnings if "cache_gc" in text] == list(loaded.warnings)
    assert len(loaded.warnings) == 1
    assert load_settings("kvcm.cache_gc.enabled=false\n", [], {}).warnings == ()


def test_the_legacy_lock_uri_counts_while_the_new_key_is_empty() -> None:
    loaded = load_settings(None, ["kvcm.distributed_lock.uri=memory://"], {})
    assert loaded.settings.coordination_uri == "memory://"
    assert "kvcm.coordination.uri" in loaded.warnings[0]
    both = load_settings(None, ["kvcm.distributed_lock.uri=file:///a", "kvcm.coordination.uri=memory://"], {})
    assert both.settings.coordination_uri == "memory://"


@pytest.mark.parametrize(("registry", "warned"), [("", True), ("local:///r", False)])
def test_an_election_without_a_registry_that_others_see_is_warned_about(registry: str, warned: bool) -> None:
    for key in ("kvcm.coordination.uri", "kvcm.distributed_lock.uri"):
        loaded = load_settings(None, [f"{key}=file:///a", f"kvcm.registry_storage.uri={registry}"], {})
        assert any("kvcm.registry_storage.uri" in text for text in loaded.warnings) == warned
    assert load_settings(None, ["kvcm.coordination.uri=memory://"], {}).warnings == ()


@pytest.mark.parametrize(
    "pairs",
    [
        ["kvcm.service.rpc_port=65536"],
        ["kvcm.service.http_port=-1"],
        ["kvcm.service.rpc_port=5", "kvcm.service.http_port=5"],
        ["kvcm.service.http_port=5", "kvcm.service.admin_http_port=5"],
        ["kvcm.service.http_port=5", "kvcm.kv_meta.rpc_port=5"],
        ["kvcm.service.http_port=5", "kvcm.kv_meta.rpc_port=3005"],
        ["kvcm.service.http_port=65000", "kvcm.service.enable_debug_service=true"],
        ["kvcm.leader_elector.lease_ms=0"],
        ["kvcm.leader_elector.lease_ms=100", "kvcm.leader_elector.loop_interval_ms=100"],
        ["kvcm.schedule_plan_executor_thread_count=1"],
        ["kvcm.schedule_plan_migration_worker_budget=2"],
        ["kvcm.meta_query.worker_count=65"],
        ["kvcm.meta_query.chunk_size=257"],
        ["kvcm.cache_reclaimer.pending_bytes_limit=0"],
        ["kvcm.cache_reclaimer.del_batch_size=65536"],
        ["kvcm.cache_gc.orphan_writing_grace_period_ms=1"],
        ["kvcm.logger.log_level=6"],
        ["kvcm.metrics.revisit_interval_buckets=5,1"],
        ["kvcm.metrics.revisit_interval_buckets=0,1"],
        ["kvcm.metrics.reporter_type=carrier-pigeon"],
        ["kvcm.access_log.queue_size=0"],
        ["kvcm.access_log.max_payload_chars=1"],
        ["kvcm.event.event_publishers_configs={"],
        ['kvcm.event.event_publishers_configs={"log":{"queue_size":0}}'],
        *([f"kvcm.service.advertised_host={host}"] for host in ("http://x", "x:6381", "[::1]", "a b", "a\x1bb", "x" * 300, "1:2:3")),
        *([f"kvcm.leader_elector.node_id={name}"] for name in ("a b", "a\nb", "\x9b31m", "n" * 300)),
        ["kvcm.service.custom_info=" + "x" * 20_000],
        ["kvcm.service.admin_auth_token= , ,"],
        ["kvcm.service.admin_auth_token_file=secret"],
        ["kvcm.service.meta_auth_token_file=secret"],
        ["kvcm.service.auth=secret"],
        ["kvcm.service.auth=accounts"],
        ["kvcm.service.admin_auth_token=secret", "kvcm.tls.admin_only=true", "kvcm.service.auth=accounts"],
        ["kvcm.service.bind_host=secret"],
        ["kvcm.service.rpc_port=5", "kvcm.service.probe_port=5"],
        ["kvcm.service.credentials_reload_ms=1"],
        ["kvcm.tls.key_file=/secret"],
        ["kvcm.tls.key_file=/k", "kvcm.tls.cert_file=secret"],
        ["kvcm.tls.client_ca_file=/secret"],
        ["kvcm.tls.cert_file=/c", "kvcm.tls.key_file=/k", "kvcm.tls.client_auth=optional"],
        ["kvcm.tls.cert_file=/c", "kvcm.tls.key_file=/k", "kvcm.tls.client_auth=require"],
        ["kvcm.tls.cert_file=/c", "kvcm.tls.key_file=/k", "kvcm.tls.admin_only=true"],
    ],
)
def test_broken_constraints_stop_the_start_with_a_sentence(pairs: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, pairs, {})
    assert caught.value.message.endswith(".")
    assert pairs[-1].partition("=")[0] in caught.value.message or "loop_interval_ms" in caught.value.message or "port" in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("host", ["", "localhost", "node-1.example", "10.0.0.1", "::1", "fe80::1%eth0", "n\u00f6de_1"])
def test_hosts_and_addresses_can_be_advertised(host: str) -> None:
    assert load_settings(None, [f"kvcm.service.advertised_host={host}"], {}).settings.service_advertised_host == host


def test_the_rpc_ports_may_share_one_listener() -> None:
    settings = load_settings(None, ["kvcm.service.rpc_port=5", "kvcm.service.admin_rpc_port=5"], {}).settings
    assert settings.service_admin_rpc_port == 5


def test_a_slow_election_loop_is_warned_about() -> None:
    loaded = load_settings(None, ["kvcm.leader_elector.lease_ms=500"], {})
    assert "a tenth" in loaded.warnings[0]


def test_the_extra_environment_is_read() -> None:
    environ = {"KVCM_LOG_LEVEL": "debug", "KVCM_LOG_TO_CONSOLE": "1", "KVCM_ACCESS_LOG_WITH_PAYLOAD": "false"}
    settings = load_settings("kvcm.logger.log_level=2", ["kvcm.access_log.with_payload=true"], environ).settings
    assert (settings.logger_log_level, settings.log_to_console, settings.access_log_with_payload) == (5, True, False)
    assert "KVCM_LOG_LEVEL" in load_settings(None, [], {"KVCM_LOG_LEVEL": "loud"}).warnings[0]
    assert load_settings(None, [], {"KVCM_ACCESS_LOG_WITH_PAYLOAD": "True"}).settings.access_log_with_payload
    assert "KVCM_ACCESS_LOG_WITH_PAYLOAD" in load_settings(None, [], {"KVCM_ACCESS_LOG_WITH_PAYLOAD": "maybe"}).warnings[0]


def test_what_observes_is_accepted_with_a_word_where_it_does_less() -> None:
    for kind in ("", "local", "logging", "dummy"):
        assert load_settings(None, [f"kvcm.metrics.reporter_type={kind}"], {}).warnings == ()
    assert "kmonitor" in load_settings(None, ["kvcm.metrics.reporter_type=kmonitor"], {}).warnings[0]
    assert load_settings(None, ['kvcm.event.event_publishers_configs={"log":{"enable":true}}'], {}).warnings == ()
    assert "optimizer" in load_settings(None, ['kvcm.event.event_publishers_configs={"optimizer":{"enable":true}}'], {}).warnings[0]


def test_every_key_of_the_contract_is_known_and_uris_are_not_shown() -> None:
    assert {"kvcm.registry_storage.uri", "kvcm.cache_gc.scan_batch_size", "kvcm.metrics.prometheus_prefix"} <= set(setting_keys())
    assert len(setting_keys()) == len(set(setting_keys()))
    assert "hush" not in repr(load_settings(None, ["kvcm.coordination.uri=redis://hush@host"], {}).settings)
