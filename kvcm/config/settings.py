"""The settings of one manager process: the table of keys (wire contract 1.4; behaviour 25). `settings_load` fills it.

A new key is one more field here, where it belongs, and a sentence in `settings_help`; then `python -m kvcm.config.settings_docs`.

Danger: a setting that is accepted and then ignored misleads its administrator. A key that this version does not act on carries a `pending`
sentence in its field and yields one warning when it is given with a value that asks for something (design D10). What guards the listeners is
checked in `settings_security`: starting unguarded must never look like being guarded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

_UNSET: Final = object()

_RECLAIM = "cache reclaim is not part of this version, the value is ignored"
_GC = "the orphan scan is not part of this version, the value is ignored"
_QUERY = "metadata reads run on one loop and need no workers, the value is ignored"


def _key(name: str, pending: str = "", inert: object = _UNSET) -> dict[str, Any]:
    """Field metadata: the wire name, what happens if the key is not acted on yet, and the value for which nothing is lost."""
    return {"key": name, "pending": pending, "inert": inert}


@dataclass(frozen=True, slots=True)
class Settings:
    """All keys of wire contract 1.4 and our own. Times are milliseconds, sizes bytes, unless the name says otherwise."""

    registry_storage_uri: str = field(default="", metadata=_key("kvcm.registry_storage.uri"), repr=False)
    # Our own: may an administrator remove what is still referenced? Upstream's answer is yes (false).
    registry_enforce_references: bool = field(default=True, metadata=_key("kvcm.registry.enforce_references"))
    # Our own: does a finish whose mask does not fit leave the session open? Upstream's answer is no (false).
    write_session_keep_after_bad_mask: bool = field(default=True, metadata=_key("kvcm.write_session.keep_after_bad_mask"))
    coordination_uri: str = field(default="", metadata=_key("kvcm.coordination.uri"), repr=False)
    distributed_lock_uri: str = field(default="", metadata=_key("kvcm.distributed_lock.uri"), repr=False)
    # Our own: where groups keep block metadata whose configuration asks for Redis and does not say which.
    meta_redis_uri: str = field(default="", metadata=_key("kvcm.meta.redis_uri"), repr=False)
    leader_elector_node_id: str = field(default="", metadata=_key("kvcm.leader_elector.node_id"))
    leader_elector_lease_ms: int = field(default=10_000, metadata=_key("kvcm.leader_elector.lease_ms"))
    leader_elector_loop_interval_ms: int = field(default=100, metadata=_key("kvcm.leader_elector.loop_interval_ms"))

    service_io_thread_num: int = field(default=0, metadata=_key("kvcm.service.io_thread_num", "HTTP runs on one event loop, the value is ignored", 0))
    service_rpc_port: int = field(default=0, metadata=_key("kvcm.service.rpc_port"))
    service_http_port: int = field(default=0, metadata=_key("kvcm.service.http_port"))
    service_admin_rpc_port: int = field(default=0, metadata=_key("kvcm.service.admin_rpc_port"))
    service_admin_http_port: int = field(default=0, metadata=_key("kvcm.service.admin_http_port"))
    service_enable_debug_service: bool = field(default=False, metadata=_key("kvcm.service.enable_debug_service"))
    # Our own, for tests of what a crash leaves behind: kvcm/common/failpoints.py.
    debug_fail_points: str = field(default="", metadata=_key("kvcm.debug.fail_points"))
    # Our own: GET /openapi.json and /docs on every HTTP listener, and reflection on every gRPC listener.
    service_http_docs: bool = field(default=True, metadata=_key("kvcm.service.http_docs"))
    service_grpc_reflection: bool = field(default=True, metadata=_key("kvcm.service.grpc_reflection"))
    service_advertised_host: str = field(default="", metadata=_key("kvcm.service.advertised_host"))
    service_custom_info: str = field(default="", metadata=_key("kvcm.service.custom_info"))
    service_admin_auth_token: str = field(default="", metadata=_key("kvcm.service.admin_auth_token"), repr=False)
    # Our own, docs/security.md: what guards the listeners. Files are read again when they change. Booleans are such that anything unclear is the safe way.
    service_admin_auth_token_file: str = field(default="", metadata=_key("kvcm.service.admin_auth_token_file"))
    service_admin_auth_http_only: bool = field(default=False, metadata=_key("kvcm.service.admin_auth_http_only"))
    service_meta_auth_token_file: str = field(default="", metadata=_key("kvcm.service.meta_auth_token_file"))
    service_auth: str = field(default="", metadata=_key("kvcm.service.auth"))
    service_bind_host: str = field(default="", metadata=_key("kvcm.service.bind_host"))
    service_probe_port: int = field(default=0, metadata=_key("kvcm.service.probe_port"))
    # Our own: the leader's pod bears the label that the leader Service selects.
    kubernetes_label_pod: bool = field(default=False, metadata=_key("kvcm.kubernetes.label_pod"))
    service_credentials_reload_ms: int = field(default=5_000, metadata=_key("kvcm.service.credentials_reload_ms"))
    tls_cert_file: str = field(default="", metadata=_key("kvcm.tls.cert_file"))
    tls_key_file: str = field(default="", metadata=_key("kvcm.tls.key_file"))
    tls_client_ca_file: str = field(default="", metadata=_key("kvcm.tls.client_ca_file"))
    tls_client_auth: str = field(default="", metadata=_key("kvcm.tls.client_auth"))
    tls_admin_only: bool = field(default=False, metadata=_key("kvcm.tls.admin_only"))
    kv_meta_rpc_port: int = field(
        default=0, metadata=_key("kvcm.kv_meta.rpc_port", "the string-keyed metadata service is not part of this version and stays off", 0)
    )
    logger_log_level: int = field(default=0, metadata=_key("kvcm.logger.log_level"))
    startup_config: str = field(default="", metadata=_key("kvcm.startup_config"))
    schedule_plan_executor_thread_count: int = field(
        default=2, metadata=_key("kvcm.schedule_plan_executor_thread_count", "deletions run in a pool of 8 threads, the value is ignored", 8)
    )
    schedule_plan_migration_worker_budget: int = field(
        default=1,
        metadata=_key("kvcm.schedule_plan_migration_worker_budget", "tiered storage is not part of this version, the value is ignored"),
    )
    meta_query_worker_count: int = field(default=4, metadata=_key("kvcm.meta_query.worker_count", _QUERY))
    meta_query_parallel_threshold: int = field(default=256, metadata=_key("kvcm.meta_query.parallel_threshold", _QUERY))
    meta_query_chunk_size: int = field(default=128, metadata=_key("kvcm.meta_query.chunk_size", _QUERY))

    cache_reclaimer_key_sampling_size_total: int = field(default=1000, metadata=_key("kvcm.cache_reclaimer.key_sampling_size_total", _RECLAIM))
    cache_reclaimer_key_sampling_size_per_task: int = field(default=100, metadata=_key("kvcm.cache_reclaimer.key_sampling_size_per_task", _RECLAIM))
    cache_reclaimer_del_batch_size: int = field(default=100, metadata=_key("kvcm.cache_reclaimer.del_batch_size", _RECLAIM))
    cache_reclaimer_idle_interval_ms: int = field(default=100, metadata=_key("kvcm.cache_reclaimer.idle_interval_ms", _RECLAIM))
    cache_reclaimer_worker_size: int = field(default=16, metadata=_key("kvcm.cache_reclaimer.worker_size", _RECLAIM))
    cache_reclaimer_inflight_delete_timeout_ms: int = field(default=60_000, metadata=_key("kvcm.cache_reclaimer.inflight_delete_timeout_ms", _RECLAIM))
    cache_reclaimer_pending_location_limit_per_group_type: int = field(
        default=20_000, metadata=_key("kvcm.cache_reclaimer.pending_location_limit_per_group_type", _RECLAIM)
    )
    cache_reclaimer_pending_bytes_limit_per_group_type: int = field(
        default=1 << 40, metadata=_key("kvcm.cache_reclaimer.pending_bytes_limit_per_group_type", _RECLAIM)
    )
    cache_reclaimer_pending_delete_handler_limit: int = field(default=1024, metadata=_key("kvcm.cache_reclaimer.pending_delete_handler_limit", _RECLAIM))
    cache_reclaimer_pending_bytes_limit: int = field(default=4 << 40, metadata=_key("kvcm.cache_reclaimer.pending_bytes_limit", _RECLAIM))
    cache_reclaimer_group_lru_min_sampling_ratio: int = field(default=10, metadata=_key("kvcm.cache_reclaimer.group_lru_min_sampling_ratio", _RECLAIM))
    cache_reclaimer_group_lru_max_sampling_size: int = field(default=65_536, metadata=_key("kvcm.cache_reclaimer.group_lru_max_sampling_size", _RECLAIM))
    cache_reclaimer_group_lru_max_delete_requests_per_round: int = field(
        default=128, metadata=_key("kvcm.cache_reclaimer.group_lru_max_delete_requests_per_round", _RECLAIM)
    )

    cache_gc_enabled: bool = field(default=True, metadata=_key("kvcm.cache_gc.enabled", _GC, False))
    cache_gc_scan_interval_ms: int = field(default=1000, metadata=_key("kvcm.cache_gc.scan_interval_ms", _GC))
    cache_gc_round_pause_ms: int = field(default=7_200_000, metadata=_key("kvcm.cache_gc.round_pause_ms", _GC))
    cache_gc_scan_batch_size: int = field(default=256, metadata=_key("kvcm.cache_gc.scan_batch_size", _GC))
    cache_gc_orphan_writing_grace_period_ms: int = field(default=86_400_000, metadata=_key("kvcm.cache_gc.orphan_writing_grace_period_ms", _GC))
    cache_gc_max_inflight_delete_requests: int = field(default=2, metadata=_key("kvcm.cache_gc.max_inflight_delete_requests", _GC))
    cache_gc_event_report_cleanup_enabled: bool = field(default=True, metadata=_key("kvcm.cache_gc.event_report_cleanup_enabled", _GC, False))
    cache_gc_event_report_action_batch_size: int = field(default=32, metadata=_key("kvcm.cache_gc.event_report_action_batch_size", _GC))

    # Empty means `local`; docs/metrics.md says what each does.
    metrics_reporter_type: str = field(default="local", metadata=_key("kvcm.metrics.reporter_type"))
    metrics_reporter_config: str = field(
        default="", metadata=_key("kvcm.metrics.reporter_config", "no metric reporter of this version reads it, the value is ignored", "")
    )
    metrics_report_interval_ms: int = field(default=20_000, metadata=_key("kvcm.metrics.report_interval_ms"))
    metrics_enable_prometheus: bool = field(default=True, metadata=_key("kvcm.metrics.enable_prometheus"))
    metrics_prometheus_prefix: str = field(default="kvcm", metadata=_key("kvcm.metrics.prometheus_prefix"))
    metrics_revisit_interval_buckets: str = field(
        default="",
        metadata=_key("kvcm.metrics.revisit_interval_buckets", "revisit intervals are not measured in this version, the value is ignored", ""),
    )
    event_publishers_configs: str = field(default="", metadata=_key("kvcm.event.event_publishers_configs"))
    # Our own: one line per call. KVCM_ACCESS_LOG_WITH_PAYLOAD, when set, wins over the key.
    access_log_enabled: bool = field(default=False, metadata=_key("kvcm.access_log.enabled"))
    access_log_with_payload: bool = field(default=False, metadata=_key("kvcm.access_log.with_payload"))
    access_log_max_payload_chars: int = field(default=2048, metadata=_key("kvcm.access_log.max_payload_chars"))
    access_log_queue_size: int = field(default=10_000, metadata=_key("kvcm.access_log.queue_size"))
    affinity_enabled: bool = field(default=False, metadata=_key("kvcm.affinity.enabled", "cache affinity is not part of this version and stays off", False))

    # From the process environment only (wire contract 1.4, "extra process environment").
    log_to_console: bool = False


def setting_keys() -> tuple[str, ...]:
    """Every key that a file, `--env` or the environment may set."""
    return tuple(item.metadata["key"] for item in fields(Settings) if "key" in item.metadata)


def store_uris(settings: Settings) -> tuple[tuple[str, str], ...]:
    """(key, URI) of every place outside of the process where a manager keeps or agrees on something; an empty URI names none."""
    return (
        ("kvcm.registry_storage.uri", settings.registry_storage_uri),
        ("kvcm.coordination.uri", settings.coordination_uri),
        ("kvcm.meta.redis_uri", settings.meta_redis_uri),
    )
