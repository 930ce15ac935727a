"""Client configuration: the JSON text of the upstream client SDK, read strictly (reference: client SDK, section C3).

Every rule broken is one sentence that names the key. Keys this client has no use for are accepted, so that an existing configuration file
works; unknown kinds of `sdk_backend_configs` are ignored for the same reason. Times are milliseconds in JSON and seconds in the objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvcm.client.errors import ClientError, InvalidBackendConfig, InvalidClientConfig, InvalidRole, InvalidSdkConfig
from kvcm.client.security import PLAIN, ClientSecurity
from kvcm.client.seeds import Seeds
from kvcm.client.types import RoleType
from kvcm.data_storage.model import StorageType

_MAX_ADDRESSES = 64
_MAX_THREADS = 256
_MAX_QUEUE = 1_000_000
_MAX_MS = 86_400_000
_KNOWN_BACKENDS = {
    kind.type_name: kind
    for kind in (
        StorageType.NFS,
        StorageType.HF3FS,
        StorageType.VCNS_HF3FS,
        StorageType.MOONCAKE,
        StorageType.TAIR_MEMPOOL,
        StorageType.DUMMY,
    )
}
_BACKEND_SIZES = ("read_iov_block_size", "read_iov_size", "write_iov_block_size", "write_iov_size", "put_replica_num")


@dataclass(frozen=True, slots=True)
class ModelDeployment:
    """Identity of the model whose KV this is; all but `user_data` must agree among clients of one instance."""

    model_name: str
    dtype: str
    use_mla: bool = False
    tp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    lora_name: str = ""
    extra: str = ""
    user_data: str = ""
    use_eagle_pop: bool = False


@dataclass(frozen=True, slots=True)
class MetaChannelConfig:
    """`retry_time`: most attempts of one idempotent read (1 or less: no repeat). Seconds otherwise.

    `failover_s` (an own key of ours, `failover_timeout`): how long after its first failure a call may begin another attempt. 0: it may
    move to a leader that is known at once, and never waits for one.
    """

    retry_time: int = 3
    connection_timeout_s: float = 1.0
    call_timeout_s: float = 0.1
    failover_s: float = 1.0


@dataclass(frozen=True, slots=True)
class SdkConfig:
    """The transfer half. `fsync`: flush a file (and the folder of a new one) to the device before a save returns (our own key)."""

    thread_num: int = 8
    queue_size: int = 2000
    put_timeout_s: float = 2.0
    get_timeout_s: float = 2.0
    fsync: bool = False
    backends: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """`block_size` is tokens a block; `location_spec_infos` maps a spec's name to its bytes a block. `security` is an own key of ours."""

    instance_group: str
    instance_id: str
    block_size: int
    location_spec_infos: Mapping[str, int]
    model_deployment: ModelDeployment
    addresses: tuple[str, ...] = ()
    location_spec_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    meta_channel: MetaChannelConfig = field(default_factory=MetaChannelConfig)
    sdk: SdkConfig = field(default_factory=SdkConfig)
    security: ClientSecurity = PLAIN

    @classmethod
    def parse(cls, source: str | Mapping[str, Any]) -> ClientConfig:
        """From JSON text or an already decoded object. Raises InvalidClientConfig or one of its kinds."""
        root = _Section(_decode(source), "")
        infos = {name: root.below("location_spec_infos").integer(name, low=1) for name in root.object("location_spec_infos")}
        if not infos:
            raise InvalidClientConfig("location_spec_infos must name at least one spec with its bytes per block")
        return cls(
            instance_group=root.text("instance_group", required=True),
            instance_id=root.text("instance_id", required=True),
            block_size=root.integer("block_size", low=1, high=(1 << 31) - 1),
            addresses=_addresses(root),
            location_spec_infos=infos,
            location_spec_groups=_groups(root, infos),
            model_deployment=_deployment(root.below("model_deployment")),
            meta_channel=_channel(root.below("meta_channel_config")),
            sdk=_sdk(root.below("sdk_config", InvalidSdkConfig)),
            security=_security(root.below("security")),
        )

    def require_addresses(self) -> tuple[str, ...]:
        """The managers' addresses, `host:port` or discovery URLs; a scheduler cannot start without one."""
        if not self.addresses:
            raise InvalidClientConfig("address must list at least one manager as host:port for the scheduler role")
        return self.addresses


@dataclass(frozen=True, slots=True)
class InitParams:
    """What differs between the processes of one engine.

    storage_configs: JSON array text as the manager sends it to a scheduler; a worker needs it. A hybrid client gets it from the manager
        and adds the entries given here under names that the manager did not send (managers never send `dummy` stores).
    self_location_spec_name: which spec this worker stores; required for workers.
    """

    role_type: RoleType
    self_location_spec_name: str = ""
    storage_configs: str = ""

    def check(self, config: ClientConfig) -> None:
        """Raises InvalidRole when the role cannot start with these values."""
        if self.role_type not in (RoleType.WORKER, RoleType.SCHEDULER, RoleType.HYBRID):
            raise InvalidRole("role_type must be WORKER, SCHEDULER or HYBRID")
        if not self.role_type & RoleType.WORKER:
            return
        if not self.self_location_spec_name:
            raise InvalidRole("self_location_spec_name is required for a worker")
        if self.self_location_spec_name not in config.location_spec_infos:
            raise InvalidRole("self_location_spec_name must be one of the names in location_spec_infos")
        if self.role_type is RoleType.WORKER and not self.storage_configs:
            raise InvalidRole("a worker needs storage_configs, the text that a scheduler gets from the manager")


def _decode(source: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(source, str):
        return source
    try:
        decoded = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise InvalidClientConfig("the client configuration is not valid JSON") from error
    if not isinstance(decoded, dict):
        raise InvalidClientConfig("the client configuration must be a JSON object")
    return decoded


class _Section:
    """One JSON object with typed look-ups; errors name the full key."""

    def __init__(self, values: Mapping[str, Any], path: str, error: type[ClientError] = InvalidClientConfig) -> None:
        self._values = values
        self._path = path
        self._error = error

    def fail(self, key: str, sentence: str) -> ClientError:
        return self._error(f"{self._path}{key} {sentence}")

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def object(self, key: str) -> Mapping[str, Any]:
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.fail(key, "must be a JSON object")
        return value

    def below(self, key: str, error: type[ClientError] | None = None) -> _Section:
        return _Section(self.object(key), f"{self._path}{key}.", error or self._error)

    def text(self, key: str, *, required: bool = False) -> str:
        value = self._values.get(key, "")
        if not isinstance(value, str):
            raise self.fail(key, "must be a text")
        if required and not value:
            raise self.fail(key, "is required and must not be empty")
        return value

    def integer(self, key: str, default: int | None = None, *, low: int, high: int = (1 << 63) - 1) -> int:
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, "must be a whole number")
        if not low <= value <= high:
            raise self.fail(key, f"must be between {low} and {high}")
        return value

    def flag(self, key: str) -> bool:
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.fail(key, "must be true or false")
        return value

    def seconds(self, key: str, default_ms: int, low: int = 1) -> float:
        return self.integer(key, default_ms, low=low, high=_MAX_MS) / 1000


def _addresses(root: _Section) -> tuple[str, ...]:
    raw = root.raw("address")
    if raw is None:
        return ()
    if not isinstance(raw, list) or len(raw) > _MAX_ADDRESSES:
        raise root.fail("address", f"must be a list of at most {_MAX_ADDRESSES} texts of the form host:port")
    Seeds(raw)
    return tuple(raw)


def _groups(root: _Section, infos: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for name, members in root.object("location_spec_groups").items():
        if not isinstance(members, list) or not all(isinstance(member, str) for member in members):
            raise root.fail(f"location_spec_groups.{name}", "must be a list of spec names")
        unknown = [member for member in members if member not in infos]
        if unknown:
            raise root.fail(f"location_spec_groups.{name}", f"names the spec {unknown[0]!r}, which location_spec_infos does not have")
        groups[name] = tuple(members)
    return groups


def _deployment(section: _Section) -> ModelDeployment:
    top = (1 << 31) - 1
    return ModelDeployment(
        model_name=section.text("model_name", required=True),
        dtype=section.text("dtype", required=True),
        use_mla=section.flag("use_mla"),
        tp_size=section.integer("tp_size", 1, low=1, high=top),
        dp_size=section.integer("dp_size", 1, low=0, high=top),
        pp_size=section.integer("pp_size", 1, low=0, high=top),
        lora_name=section.text("lora_name"),
        extra=section.text("extra"),
        user_data=section.text("user_data"),
        use_eagle_pop=section.flag("use_eagle_pop"),
    )


def _channel(section: _Section) -> MetaChannelConfig:
    return MetaChannelConfig(
        retry_time=section.integer("retry_time", 3, low=0, high=100),
        connection_timeout_s=section.seconds("connection_timeout", 1000),
        call_timeout_s=section.seconds("call_timeout", 100),
        failover_s=section.seconds("failover_timeout", 1000, low=0),
    )


def _security(section: _Section) -> ClientSecurity:
    """File names only: a token in a configuration file would be copied with it."""
    names = {key: section.text(key) for key in ("token_file", "user", "password_file", "ca_file", "cert_file", "key_file", "server_name")}
    return ClientSecurity.of(tls=section.flag("tls"), **names)


def _sdk(section: _Section) -> SdkConfig:
    timeouts = section.below("timeout_config")
    return SdkConfig(
        thread_num=section.integer("thread_num", 8, low=1, high=_MAX_THREADS),
        queue_size=section.integer("queue_size", 2000, low=1, high=_MAX_QUEUE),
        put_timeout_s=timeouts.seconds("put_timeout_ms", 2000),
        get_timeout_s=timeouts.seconds("get_timeout_ms", 2000),
        fsync=section.flag("fsync"),
        backends=_backends(section),
    )


def _backends(section: _Section) -> dict[str, Mapping[str, Any]]:
    """Entries by kind. Checked, and kept for those who read them; file-system stores take their place from the storage list."""
    entries = section.raw("sdk_backend_configs")
    if entries is None:
        return {}
    if not isinstance(entries, list):
        raise section.fail("sdk_backend_configs", "must be a list")
    found: dict[str, Mapping[str, Any]] = {}
    for index, entry in enumerate(entries):
        where = f"sdk_config.sdk_backend_configs[{index}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
            raise InvalidBackendConfig(f"{where} must be an object with a text named type")
        kind = entry["type"]
        if kind not in _KNOWN_BACKENDS:
            continue
        if kind in found:
            raise InvalidBackendConfig(f"{where} repeats the kind {kind!r}")
        checked = _Section(entry, f"{where}.", InvalidBackendConfig)
        for key in _BACKEND_SIZES:
            checked.integer(key, 0, low=0)
        found[kind] = dict(entry)
    return found
