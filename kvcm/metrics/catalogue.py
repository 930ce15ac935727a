"""Every metric family of a manager: the one source of names, labels, units and meanings, for the owners of numbers and for docs/metrics.md.

Names that upstream has too are upstream's (behaviour 18); the others are our own. Sections are in the order of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvcm.metrics.families import Family, Histogram, Labels

_API: Final = ("api_name", "instance_group", "instance_id")
_INSTANCE: Final = ("instance_group", "instance_id")
_STORAGE: Final = ("type", "unique_name")


@dataclass(frozen=True, slots=True)
class Spec:
    """`unit`: empty for plain counts and states. `section`: a heading of docs/metrics.md."""

    section: str
    name: str
    kind: Literal["counter", "gauge"]
    text: str
    labels: Labels = ()
    unit: str = ""

    def of(self, samples: Sequence[tuple[Labels, float]]) -> Family:
        return Family(self.name, self.kind, self.text, self.labels, samples)

    def only(self, value: float) -> Family:
        """A family without labels."""
        return Family(self.name, self.kind, self.text, (), [((), value)])


@dataclass(frozen=True, slots=True)
class HistogramSpec:
    section: str
    name: str
    text: str
    labels: Labels = ()
    unit: str = "s"
    kind: Literal["histogram"] = "histogram"

    def of(self, bounds: Sequence[float], samples: Sequence[tuple[Labels, Sequence[int], float]]) -> Histogram:
        return Histogram(self.name, self.text, bounds, self.labels, samples)


_all: list[Spec | HistogramSpec] = []
_section = ""


def _begin(section: str) -> None:
    global _section
    _section = section


def _counter(name: str, text: str, labels: Labels = (), unit: str = "") -> Spec:
    return _keep(Spec(_section, name, "counter", text, labels, unit))


def _gauge(name: str, text: str, labels: Labels = (), unit: str = "") -> Spec:
    return _keep(Spec(_section, name, "gauge", text, labels, unit))


def _keep(spec: Spec) -> Spec:
    _all.append(spec)
    return spec


def _histogram(name: str, text: str, labels: Labels = ()) -> HistogramSpec:
    spec = HistogramSpec(_section, name, text, labels)
    _all.append(spec)
    return spec


_begin("Calls")
QUERY_COUNTER: Final = _counter("service.query_counter", "Calls answered.", _API)
ERROR_COUNTER: Final = _counter("service.error_counter", "Calls answered with an error.", _API)
QUERY_TIME_SUM: Final = _counter("service.query_time_us_sum", "Time spent on calls.", _API, "us")
QUERY_RT: Final = _gauge("service.query_rt_us", "Time of the last call, from the parsed request to the reply.", _API, "us")
ERROR_CODE: Final = _gauge("service.error_code", "Code of the last call, 1 is OK.", _API)
QUERY_SECONDS: Final = _histogram("service.query_seconds", "Time from the parsed request to the reply.", ("api_name",))
IN_FLIGHT: Final = _gauge("service.requests_in_flight", "Calls being answered now.")

_begin("Reads and writes of blocks")
REQUEST_KEYS: Final = _gauge("manager.request_key_count", "Blocks named by the last call.", _API)
QUERIED_BLOCKS: Final = _counter("manager.get_cache_location_query_block_counter", "Blocks that reads asked for.", _API)
HIT_BLOCKS: Final = _counter("manager.get_cache_location_hit_block_counter", "Blocks that reads found.", _API)
PREFIX_LEN: Final = _gauge("manager.prefix_match_len", "Blocks found by the last read.", _API)
PREFIX_TIME: Final = _gauge("manager.prefix_match_time_us", "Time of the last read, matching and reply.", _API, "us")
QUERY_KEYS: Final = _gauge("meta_indexer.query_key_count", "Blocks that the last read looked for.", _API)
NOT_FOUND_KEYS: Final = _gauge("meta_indexer.get_not_exist_key_count", "Blocks that the last read did not find.", _API)
FILTER_TIME: Final = _gauge("manager.filter_write_cache_time_us", "Last StartWriteCache: finding out what is there already.", ("api_name",), "us")
ALLOCATE_TIME: Final = _gauge("manager.write_cache_io_cost_us", "Last StartWriteCache with new blocks: getting places from the storage.", ("api_name",), "us")
GENERATE_TIME: Final = _gauge("manager.gen_write_location_us", "Last StartWriteCache with new blocks: building their locations.", ("api_name",), "us")
ADD_TIME: Final = _gauge("manager.batch_add_location_time_us", "Last StartWriteCache with new blocks: entering them into the index.", ("api_name",), "us")
UPDATE_TIME: Final = _gauge("manager.batch_update_location_time_us", "Last FinishWriteCache: moving its blocks to their end state.", ("api_name",), "us")
OPEN_WRITES: Final = _gauge("cache_manager.write_location_expire_size", "Open write sessions.")
SESSIONS_OPENED: Final = _counter("write_session.opened_counter", "Write sessions begun.")
SESSIONS_FINISHED: Final = _counter("write_session.finished_counter", "Write sessions ended by FinishWriteCache.")
SESSIONS_EXPIRED: Final = _counter("write_session.expired_counter", "Write sessions with blocks whose time ran out: their writer died or was too slow.")
SESSIONS_IDLE: Final = _counter("write_session.idle_counter", "Write sessions without any block to write whose time ran out: nothing was lost.")
SESSIONS_ABORTED: Final = _counter("write_session.aborted_counter", "Write sessions ended because their instance was removed or leadership was lost.")

_begin("What is stored")
TOTAL_KEYS: Final = _gauge("meta_indexer.total_key_count", "Blocks of all instances.")
TOTAL_BYTES: Final = _gauge("meta_indexer.total_data_size", "Bytes of all blocks.", unit="bytes")
INSTANCE_KEYS: Final = _gauge("cache_manager_instance.key_count", "Blocks of an instance.", _INSTANCE)
INSTANCE_BYTES: Final = _gauge("cache_manager_instance.byte_size", "Bytes of an instance's blocks.", _INSTANCE, "bytes")
GROUP_BYTES: Final = _gauge("cache_manager_group.used_bytes", "Bytes of a group's blocks.", ("instance_group",), "bytes")
GROUP_RATIO: Final = _gauge("cache_manager_group.usage_ratio", "Used bytes by quota, 1 is full.", ("instance_group",), "ratio")
INSTANCES: Final = _gauge("registry.instance_count", "Registered instances.")
GROUPS: Final = _gauge("registry.group_count", "Instance groups.")
QUARANTINED: Final = _gauge("registry.quarantined_records", "Stored records that cannot be used.")

_begin("Storages")
STORAGE_HEALTHY: Final = _gauge("data_storage.healthy_status", "1: opened, and its root is the right one.", _STORAGE)
STORAGE_AVAILABLE: Final = _gauge("data_storage.available", "1: healthy and enabled.", _STORAGE)
STORAGE_CREATES: Final = _counter("data_storage.create_counter", "Requests for places.", _STORAGE)
STORAGE_CREATED_KEYS: Final = _counter("data_storage.create_keys_counter", "Places handed out.", _STORAGE)
STORAGE_FAILURES: Final = _counter("data_storage.create_error_counter", "Requests for places that failed.", _STORAGE)
STORAGE_BYTES: Final = _counter("data_storage.write_bytes_dispatched_total", "Bytes that the places handed out are for.", _STORAGE, "bytes")
STORAGE_QPS: Final = _gauge("data_storage.create_keys_qps", "Places handed out in the last full second.", _STORAGE, "1/s")
STORAGE_TIME: Final = _gauge("data_storage.create_time_us", "Time of the last request for places.", _STORAGE, "us")

_begin("Hosts that report blocks")
REPORTERS: Final = _gauge("event_reporters.count", "Hosts that report blocks; state is alive, silent or gone.", (*_INSTANCE, "state"))
REPORTS_CLEANED: Final = _counter("event_reporters.cleaned_counter", "Blocks freed of copies that nobody can see any more.")


def reported_number(key: str, samples: Sequence[tuple[Labels, float]]) -> Family:
    """A number of hosts' heartbeats, under the name that they give it (wire contract 3.7); not on the page, because nobody knows them beforehand."""
    return Family(f"event_report.{key}", "gauge", "A number of hosts' heartbeats.", ("instance_id", "host"), samples)


_begin("Deletion")
DELETIONS_WAITING: Final = _gauge("schedule_plan_executor.waiting_task_count", "Locations waiting for deletion.")
DELETIONS_CONDEMNED: Final = _counter("deleter.condemned_counter", "Locations marked for deletion.")
DELETIONS_BURIED: Final = _counter("deleter.buried_counter", "Locations whose bytes are proven gone.")
DELETIONS_UNPROVEN: Final = _counter("deleter.unproven_counter", "Attempts that ended without proof.")
DELETIONS_OVERFLOW: Final = _counter("deleter.overflow_counter", "Locations that found the queue full.")

_begin("Block metadata in Redis")
META_CONNECTIONS: Final = _counter("meta_redis.connection_counter", "Connections made; more than one an instance means that they break.")
META_BATCHES: Final = _counter("meta_redis.batch_counter", "Changes that Redis has confirmed.")
META_BLOCKS: Final = _counter("meta_redis.block_counter", "Blocks in these changes.")
META_FAILURES: Final = _counter("meta_redis.failure_counter", "Changes that were refused, had no known outcome, or were fenced off.", ("reason",))
META_LOADED: Final = _counter("meta_redis.loaded_counter", "Blocks read by finished recoveries.")
META_DAMAGED: Final = _counter("meta_redis.damaged_counter", "Records that recoveries could not read; they are left in Redis.")
META_LOADING: Final = _gauge("meta_redis.loading_blocks", "Blocks of the recoveries that are under way: found, and done so far.", ("state",))
META_BEHIND: Final = _gauge("meta_redis.behind_blocks", "Blocks whose last change waits to be written behind: what a crash would lose.")
META_BEHIND_AGE: Final = _gauge("meta_redis.behind_ms", "Since when the oldest of them waits.", unit="ms")
META_BEHIND_LOST: Final = _counter("meta_redis.behind_lost_counter", "Blocks whose last change was accepted for writing behind and never reached Redis.")

_begin("Leadership")
IS_LEADER: Final = _gauge("coordination.is_leader", "1: this node answers leader-only calls.")
HEALTHY: Final = _gauge("coordination.healthy", "1: a leader is known, and if it is this node it serves.")
EPOCH: Final = _gauge("coordination.epoch", "Number of this node's current or last term; grows with every change of leadership.")
LEASE_LEFT: Final = _gauge("coordination.lease_left_ms", "How long the lease still holds without a renewal, 0 when not leading.", unit="ms")
LOOP_AGE: Final = _gauge("coordination.elector_loop_age_ms", "Time since the election loop last turned.", unit="ms")
TERMS: Final = _counter("coordination.promotion_counter", "Terms that this node began to serve.")
STEPS_DOWN: Final = _counter("coordination.demotion_counter", "Times that this node stepped down, also after a promotion that failed.")
ELECTION_FAILURES: Final = _counter("coordination.failure_counter", "Requests to the coordinator, promotions and demotions that failed.", ("operation",))

_begin("Following")
COPIES: Final = _gauge("follower.copies", "Copies of instances' indexes that a node keeps while it does not lead; state is warm or filling.", ("state",))
COPIED_BLOCKS: Final = _gauge("follower.blocks", "Blocks in these copies.")
LAG_ENTRIES: Final = _gauge("follower.lag_entries", "Changes that the leader has told and the copies do not have yet.")
LAG_SECONDS: Final = _gauge("follower.lag_seconds", "How old the copy that is furthest behind may be, 0 when nothing is known to be missing.", unit="s")
RESYNCS: Final = _counter("follower.resync_counter", "Copies that lost track and were begun anew by a scan.")

_begin("Security")
AUTH_REFUSED: Final = _counter("auth.refused_counter", "Calls refused before they reached a service.", ("plane", "reason"))
CREDENTIALS_FAILING: Final = _gauge("credentials.failing", "1 while the newest content of these files cannot be used.", ("name",))
CERTIFICATE_EXPIRY: Final = _gauge("tls.certificate_expiry_seconds", "Unix time at which the certificate of the listeners expires.", unit="s")

_begin("HTTP")
_HTTP: Final = ("type",)
HTTP_REQUESTS: Final = _counter("http.request_counter", "Requests to the JSON API, whatever became of them; type is the listener.", _HTTP)
HTTP_QUERIES: Final = _counter("http.service_query_counter", "Requests that reached their RPC.", _HTTP)
HTTP_REFUSED: Final = _counter("http.refused_counter", "Requests that did not reach an RPC or got no reply, by HTTP status.", ("type", "status"))
HTTP_PARSE: Final = _counter("http.request_parse_time_us_sum", "Time for receiving and reading bodies.", _HTTP, "us")
HTTP_CALLBACK: Final = _counter("http.service_callback_time_us_sum", "Time for answering the calls.", _HTTP, "us")
HTTP_SERIALIZE: Final = _counter("http.response_serialize_time_us_sum", "Time for writing replies as JSON.", _HTTP, "us")
HTTP_HANDLER: Final = _counter("http.handler_time_us_sum", "Time for whole requests.", _HTTP, "us")

_begin("Events, logs and metrics themselves")
_PUBLISHER: Final = ("publisher",)
EVENTS_PUBLISHED: Final = _counter("event.published_counter", "Events handed to a publisher.", _PUBLISHER)
EVENTS_DELIVERED: Final = _counter("event.delivered_counter", "Events that a publisher has delivered.", _PUBLISHER)
EVENTS_DROPPED: Final = _counter("event.dropped_counter", "Events that found a publisher's queue full or could not be delivered.", _PUBLISHER)
EVENTS_QUEUED: Final = _gauge("event.queued", "Events that wait.", _PUBLISHER)
ACCESS_LOG_LINES: Final = _counter("access_log.line_counter", "Lines written to the access log.")
ACCESS_LOG_DROPPED: Final = _counter("access_log.dropped_counter", "Calls missing in the access log because its queue was full.")
LOG_DROPPED: Final = _counter("log.dropped_line_counter", "Log lines lost because nobody took them fast enough or their file could not be written.")
SERIES_DROPPED: Final = _gauge("metrics.dropped_series", "Series left out of this page because a family has too many.")
SOURCES_FAILED: Final = _counter("metrics.failed_source_counter", "Owners of numbers that failed when they were asked.")

_begin("Process")
BUILD: Final = _gauge("build.info", "Always 1; the labels are versions.", ("version", "python", "grpcio", "protobuf"))
LOOP_LAG: Final = _gauge("loop.lag_seconds", "How late the last timer was.", unit="s")
LOOP_LAG_MAX: Final = _gauge("loop.lag_max_seconds", "Longest lag of the last one to two minutes.", unit="s")
LOOP_LAG_EVER: Final = _gauge("loop.lag_ever_max_seconds", "Longest lag since the start.", unit="s")
LOOP_LAGS: Final = _histogram("loop.lag_distribution_seconds", "How late timers were.")
GC_MAX: Final = _gauge("gc.pause_max_seconds", "Longest collection of the last one to two minutes.", ("generation",), "s")
GC_EVER: Final = _gauge("gc.pause_ever_max_seconds", "Longest collection since the start.", ("generation",), "s")
GC_PAUSES: Final = _histogram("gc.pause_seconds", "How long collections took.", ("generation",))

FAMILIES: Final = tuple(_all)
