"""The client's configuration: defaults, every broken rule with a sentence that names the key, and the role's needs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcm.client.config import ClientConfig, InitParams
from kvcm.client.errors import InvalidBackendConfig, InvalidClientConfig, InvalidRole, InvalidSdkConfig
from kvcm.client.types import RoleType, role_from_text

pytestmark = pytest.mark.unit


def _good() -> dict[str, Any]:
    return {
        "instance_group": "default",
        "instance_id": "inst",
        "block_size": 16,
        "address": ["127.0.0.1:6381", "manager-1.svc:6381"],
        "location_spec_infos": {"tp0": 4096, "tp1": 4096},
        "location_spec_groups": {"all": ["tp0", "tp1"]},
        "model_deployment": {"model_name": "m", "dtype": "bf16", "tp_size": 2},
    }


def _with(path: str, value: Any) -> dict[str, Any]:
    config = _good()
    *parents, last = path.split(".")
    section = config
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    return config


def test_defaults_are_those_of_the_sdk() -> None:
    config = ClientConfig.parse(json.dumps(_good()))
    assert (config.meta_channel.retry_time, config.meta_channel.connection_timeout_s, config.meta_channel.call_timeout_s) == (3, 1.0, 0.1)
    assert (config.sdk.thread_num, config.sdk.queue_size, config.sdk.put_timeout_s, config.sdk.get_timeout_s) == (8, 2000, 2.0, 2.0)
    assert config.sdk.fsync is False
    assert config.location_spec_groups == {"all": ("tp0", "tp1")}
    assert config.require_addresses() == ("127.0.0.1:6381", "manager-1.svc:6381")


def test_unknown_keys_and_unknown_backend_kinds_are_accepted() -> None:
    config = _with("sdk_config.sdk_backend_configs", [{"type": "future", "x": 1}, {"type": "hf3fs", "read_iov_size": 1 << 32}])
    config["something_new"] = {"a": 1}
    assert list(ClientConfig.parse(config).sdk.backends) == ["hf3fs"]


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("instance_group", "", InvalidClientConfig),
        ("instance_group", None, InvalidClientConfig),
        ("instance_id", "", InvalidClientConfig),
        ("instance_id", 7, InvalidClientConfig),
        ("block_size", 0, InvalidClientConfig),
        ("block_size", True, InvalidClientConfig),
        ("block_size", "16", InvalidClientConfig),
        ("block_size", 1 << 31, InvalidClientConfig),
        ("address", "host:1", InvalidClientConfig),
        ("address", ["host"], InvalidClientConfig),
        ("address", ["host:0"], InvalidClientConfig),
        ("address", [":80"], InvalidClientConfig),
        ("address", ["host:99999"], InvalidClientConfig),
        ("address", ["a:1"] * 65, InvalidClientConfig),
        ("location_spec_infos", {}, InvalidClientConfig),
        ("location_spec_infos", [], InvalidClientConfig),
        ("location_spec_infos.tp0", 0, InvalidClientConfig),
        ("location_spec_groups.all", ["tp9"], InvalidClientConfig),
        ("location_spec_groups.all", "tp0", InvalidClientConfig),
        ("model_deployment", None, InvalidClientConfig),
        ("model_deployment.model_name", "", InvalidClientConfig),
        ("model_deployment.dtype", "", InvalidClientConfig),
        ("model_deployment.tp_size", 0, InvalidClientConfig),
        ("model_deployment.use_mla", 1, InvalidClientConfig),
        ("meta_channel_config.call_timeout", 0, InvalidClientConfig),
        ("meta_channel_config.connection_timeout", -1, InvalidClientConfig),
        ("meta_channel_config.retry_time", -1, InvalidClientConfig),
        ("sdk_config.thread_num", 0, InvalidSdkConfig),
        ("sdk_config.queue_size", 0, InvalidSdkConfig),
        ("sdk_config.timeout_config.put_timeout_ms", 0, InvalidSdkConfig),
        ("sdk_config.timeout_config.get_timeout_ms", 1.5, InvalidSdkConfig),
        ("sdk_config.fsync", "yes", InvalidSdkConfig),
        ("sdk_config.sdk_backend_configs", {}, InvalidSdkConfig),
        ("sdk_config.sdk_backend_configs", [{}], InvalidBackendConfig),
        ("sdk_config.sdk_backend_configs", [{"type": "file"}, {"type": "file"}], InvalidBackendConfig),
        ("sdk_config.sdk_backend_configs", [{"type": "hf3fs", "read_iov_size": -1}], InvalidBackendConfig),
    ],
)
def test_each_broken_rule_is_named(path: str, value: Any, error: type[InvalidClientConfig]) -> None:
    with pytest.raises(error) as caught:
        ClientConfig.parse(_with(path, value))
    assert type(caught.value) is error
    assert path.split(".")[0].removesuffix("_config") in caught.value.message or path.split(".")[-1] in caught.value.message


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_text_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidClientConfig):
        ClientConfig.parse(text)


def test_a_scheduler_needs_addresses_and_a_worker_does_not() -> None:
    config = _good()
    del config["address"]
    parsed = ClientConfig.parse(config)
    assert parsed.addresses == ()
    with pytest.raises(InvalidClientConfig, match="address"):
        parsed.require_addresses()


def test_roles() -> None:
    config = ClientConfig.parse(_good())
    assert [role_from_text(text) for text in ("Worker", "SCHEDULER", "hybrid")] == [RoleType.WORKER, RoleType.SCHEDULER, RoleType.HYBRID]
    InitParams(RoleType.SCHEDULER).check(config)
    InitParams(RoleType.HYBRID, "tp0").check(config)
    InitParams(RoleType.WORKER, "tp1", "[]").check(config)
    for bad in (
        InitParams(RoleType.UNKNOWN),
        InitParams(RoleType(4)),
        InitParams(RoleType.HYBRID),
        InitParams(RoleType.WORKER, "tp9", "[]"),
        InitParams(RoleType.WORKER, "tp0"),
    ):
        with pytest.raises(InvalidRole) as caught:
            bad.check(config)
        assert caught.value.client_code == 4
    with pytest.raises(InvalidRole):
        role_from_text("boss")
