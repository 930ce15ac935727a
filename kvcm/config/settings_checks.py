"""Constraints between and on settings (behaviour 25; wire contract 1.1, 1.4). Pure: a list of sentences, empty when all is well."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from kvcm.common.errors import InvalidArgument
from kvcm.common.failpoints import parse_fail_points
from kvcm.config.settings_security import check_security
from kvcm.config.settings_source import parse_buckets
from kvcm.event.publishers import parse_publishers

if TYPE_CHECKING:
    from kvcm.config.settings import Settings

DEBUG_PORT_OFFSET = 3000
MAX_PORT = 65_535
_MAX_LEASE_MS = 3_600_000
_MAX_THREADS = 1024
_MAX_WAITING = 1_000_000
_MAX_NAME_CHARS = 256
_MAX_CUSTOM_CHARS = 16_384
_MAX_PAYLOAD_CHARS = 65_536
REPORTER_TYPES = ("", "local", "logging", "dummy", "kmonitor")


def check_settings(settings: Settings, warnings: list[str]) -> list[str]:
    """Sentences for what the process cannot start with; adds to `warnings` what it can start with but should not."""
    return [
        *_ports(settings),
        *_election(settings, warnings),
        *_workers(settings),
        *_positive(settings),
        *_texts(settings),
        *_observing(settings, warnings),
        *_debugging(settings, warnings),
        *check_security(settings),
    ]


def _ports(settings: Settings) -> list[str]:
    ports = {
        "kvcm.service.rpc_port": settings.service_rpc_port,
        "kvcm.service.http_port": settings.service_http_port,
        "kvcm.service.admin_rpc_port": settings.service_admin_rpc_port,
        "kvcm.service.admin_http_port": settings.service_admin_http_port,
        "kvcm.kv_meta.rpc_port": settings.kv_meta_rpc_port,
    }
    problems = [f"{key!r} must be a port from 0 to {MAX_PORT}." for key, port in ports.items() if not 0 <= port <= MAX_PORT]
    debug_port = settings.service_http_port + DEBUG_PORT_OFFSET if settings.service_http_port else 0
    if settings.service_enable_debug_service and debug_port > MAX_PORT:
        problems.append(f"'kvcm.service.http_port' leaves no room for the debug port, which is {DEBUG_PORT_OFFSET} above it.")
    # The two RPC ports may be equal (then they share one listener); nothing else may share.
    shared = [ports["kvcm.service.rpc_port"], ports["kvcm.service.admin_rpc_port"]]
    for key in ("kvcm.service.http_port", "kvcm.service.admin_http_port"):
        if ports[key] and ports[key] in shared:
            problems.append(f"{key!r} must differ from the RPC ports and from the other HTTP port.")
        shared.append(ports[key])
    kv_meta = settings.kv_meta_rpc_port
    if kv_meta and kv_meta in (*shared, debug_port):
        problems.append(f"'kvcm.kv_meta.rpc_port' must differ from the four service ports and from the HTTP port plus {DEBUG_PORT_OFFSET}.")
    return problems


def _election(settings: Settings, warnings: list[str]) -> list[str]:
    lease, interval = settings.leader_elector_lease_ms, settings.leader_elector_loop_interval_ms
    if not 0 < lease <= _MAX_LEASE_MS:
        return [f"'kvcm.leader_elector.lease_ms' must be from 1 to {_MAX_LEASE_MS}."]
    if not 0 < interval < lease:
        return ["'kvcm.leader_elector.loop_interval_ms' must be positive and smaller than 'kvcm.leader_elector.lease_ms'."]
    if interval * 10 > lease:
        warnings.append("'kvcm.leader_elector.loop_interval_ms' should be at most a tenth of 'kvcm.leader_elector.lease_ms'.")
    return []


def _workers(settings: Settings) -> list[str]:
    problems = []
    threads = settings.schedule_plan_executor_thread_count
    if not 1 < threads <= _MAX_THREADS:
        problems.append(f"'kvcm.schedule_plan_executor_thread_count' must be from 2 to {_MAX_THREADS}.")
    if not 0 < settings.schedule_plan_migration_worker_budget < max(threads, 2):
        problems.append("'kvcm.schedule_plan_migration_worker_budget' must be positive and smaller than 'kvcm.schedule_plan_executor_thread_count'.")
    if not 1 <= settings.meta_query_worker_count <= 64:
        problems.append("'kvcm.meta_query.worker_count' must be from 1 to 64.")
    if not 0 < settings.meta_query_chunk_size <= settings.meta_query_parallel_threshold:
        problems.append("'kvcm.meta_query.chunk_size' must be positive and at most 'kvcm.meta_query.parallel_threshold'.")
    return problems


def _positive(settings: Settings) -> list[str]:
    least = {
        "kvcm.cache_reclaimer.inflight_delete_timeout_ms": (settings.cache_reclaimer_inflight_delete_timeout_ms, 1),
        "kvcm.cache_reclaimer.pending_location_limit_per_group_type": (settings.cache_reclaimer_pending_location_limit_per_group_type, 1),
        "kvcm.cache_reclaimer.pending_bytes_limit_per_group_type": (settings.cache_reclaimer_pending_bytes_limit_per_group_type, 1),
        "kvcm.cache_reclaimer.pending_delete_handler_limit": (settings.cache_reclaimer_pending_delete_handler_limit, 1),
        "kvcm.cache_reclaimer.pending_bytes_limit": (settings.cache_reclaimer_pending_bytes_limit, 1),
        "kvcm.cache_reclaimer.group_lru_min_sampling_ratio": (settings.cache_reclaimer_group_lru_min_sampling_ratio, 1),
        "kvcm.cache_reclaimer.group_lru_max_sampling_size": (settings.cache_reclaimer_group_lru_max_sampling_size, 1),
        "kvcm.cache_reclaimer.group_lru_max_delete_requests_per_round": (
            settings.cache_reclaimer_group_lru_max_delete_requests_per_round,
            1,
        ),
        "kvcm.cache_gc.scan_interval_ms": (settings.cache_gc_scan_interval_ms, 1),
        "kvcm.cache_gc.round_pause_ms": (settings.cache_gc_round_pause_ms, 0),
        "kvcm.cache_gc.scan_batch_size": (settings.cache_gc_scan_batch_size, 1),
        "kvcm.cache_gc.orphan_writing_grace_period_ms": (settings.cache_gc_orphan_writing_grace_period_ms, 3_600_000),
        "kvcm.cache_gc.max_inflight_delete_requests": (settings.cache_gc_max_inflight_delete_requests, 1),
        "kvcm.cache_gc.event_report_action_batch_size": (settings.cache_gc_event_report_action_batch_size, 1),
        "kvcm.metrics.report_interval_ms": (settings.metrics_report_interval_ms, 1),
    }
    problems = [f"{key!r} must be at least {floor}." for key, (value, floor) in least.items() if value < floor]
    for key, value in (
        ("kvcm.cache_reclaimer.key_sampling_size_total", settings.cache_reclaimer_key_sampling_size_total),
        ("kvcm.cache_reclaimer.del_batch_size", settings.cache_reclaimer_del_batch_size),
    ):
        if not 0 <= value < 65_536:
            problems.append(f"{key!r} must be from 0 to 65535.")
    return problems


def _texts(settings: Settings) -> list[str]:
    problems = []
    if not 0 <= settings.logger_log_level <= 5:
        problems.append("'kvcm.logger.log_level' must be from 0 to 5.")
    try:
        parse_buckets(settings.metrics_revisit_interval_buckets)
    except ValueError as error:
        problems.append(f"'kvcm.metrics.revisit_interval_buckets' {error}.")
    if not _is_host(settings.service_advertised_host):
        problems.append("'kvcm.service.advertised_host' must be a host name or an IP address, without scheme, port and brackets.")
    node_id = settings.leader_elector_node_id
    if len(node_id) > _MAX_NAME_CHARS or not node_id.isprintable() or " " in node_id:
        problems.append(f"'kvcm.leader_elector.node_id' must have at most {_MAX_NAME_CHARS} visible characters and no blanks.")
    if len(settings.service_custom_info) > _MAX_CUSTOM_CHARS:
        problems.append(f"'kvcm.service.custom_info' must have at most {_MAX_CUSTOM_CHARS} characters: every GetClusterInfo sends it.")
    return problems


def _debugging(settings: Settings, warnings: list[str]) -> list[str]:
    if not settings.debug_fail_points:
        return []
    if not settings.service_enable_debug_service:
        return ["'kvcm.debug.fail_points' makes a manager crash on purpose and needs 'kvcm.service.enable_debug_service=true'; leave it empty in production."]
    try:
        parse_fail_points(settings.debug_fail_points)
    except InvalidArgument as error:
        return [f"'kvcm.debug.fail_points': {error.message}."]
    warnings.append("'kvcm.debug.fail_points' is set: this manager can be made to crash and to fail on purpose.")
    return []


def _is_host(text: str) -> bool:
    """Clients put a port behind it. Empty is one, too: it is found out then."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text.partition("%")[0]).version == 6
        except ValueError:
            return False
    return len(text) <= _MAX_NAME_CHARS and text.isprintable() and not set(text) & set(" /@[]?#")


def _observing(settings: Settings, warnings: list[str]) -> list[str]:
    problems = []
    if settings.metrics_reporter_type not in REPORTER_TYPES:
        problems.append("'kvcm.metrics.reporter_type' must be local, logging, dummy or kmonitor.")
    if settings.metrics_reporter_type == "kmonitor":
        warnings.append(
            "'kvcm.metrics.reporter_type=kmonitor' is accepted but there is no kmonitor client in this version: it acts as 'local'; scrape /metrics instead."
        )
    for key, value, least, most in (
        ("kvcm.access_log.max_payload_chars", settings.access_log_max_payload_chars, 64, _MAX_PAYLOAD_CHARS),
        ("kvcm.access_log.queue_size", settings.access_log_queue_size, 1, _MAX_WAITING),
    ):
        if not least <= value <= most:
            problems.append(f"{key!r} must be from {least} to {most}.")
    try:
        publishers = parse_publishers(settings.event_publishers_configs)
    except ValueError as error:
        problems.append(f"'kvcm.event.event_publishers_configs' {error}.")
    else:
        if publishers.optimizer.enable:
            warnings.append("'kvcm.event.event_publishers_configs' enables the publisher 'optimizer', which is not part of this version and stays off.")
    return problems
