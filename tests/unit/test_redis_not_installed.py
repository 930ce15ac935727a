"""An installation without the extra `kvcm[redis]`: a manager that is given a Redis does not start, and says what to install."""

from __future__ import annotations

import asyncio

import pytest

from kvcm.cli.manager_process import Start, _settings
from kvcm.common.errors import Unsupported
from kvcm.common.redis import connection
from kvcm.config.settings_load import load_settings
from kvcm.service.server import ManagerServer

pytestmark = pytest.mark.unit

SECRET = "s3cr3t"
KEYS = ("kvcm.meta.redis_uri", "kvcm.registry_storage.uri", "kvcm.coordination.uri")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "hiredis", None)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel"])
def test_a_manager_that_is_given_a_redis_does_not_start(key: str, scheme: str) -> None:
    uri = f"{scheme}://:{SECRET}@127.0.0.1:1/{'main' if 'sentinel' in scheme else ''}?cluster_name=x"
    with pytest.raises(Unsupported, match=r"hiredis is not installed: pip install 'kvcm\[redis\]'") as by_command:
        _settings(Start("kvcm serve", env=(f"{key}={uri}",)), None)
    with pytest.raises(Unsupported) as embedded:
        asyncio.run(ManagerServer(load_settings(None, [f"{key}={uri}"], {}).settings).start())
    assert embedded.value.message == by_command.value.message
    assert by_command.value.message.startswith(f"{key} names a Redis")
    assert SECRET not in by_command.value.message


def test_without_a_redis_nothing_is_missed() -> None:
    _settings(Start("kvcm serve", env=("kvcm.coordination.uri=etcd://127.0.0.1:1/x", "kvcm.registry_storage.uri=etcd://127.0.0.1:1/x")), None)
    assert not connection.is_installed()
