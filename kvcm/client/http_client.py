"""KvCacheManagerClient: the metadata plane over HTTP and JSON, with the call surface of upstream's Python client. Blocking and thread-safe.

    with KvCacheManagerClient("http://manager:6382", instance_id="my-model", auto_discover_leader=True) as client:
        client.register_instance({...})
        reply = client.get_cache_location({"instance_id": "my-model", "query_type": "QT_PREFIX_MATCH", "block_keys": [1, 2, 3]})

Every method takes the request as a dictionary of the JSON API and returns the whole reply; 64-bit integers in replies are strings. With `check_response`
(the default) a reply other than OK raises the ServiceError of its code, which also is an AssertionError, as existing callers expect.

With `auto_discover_leader`, a request is sent again when the manager answers SERVER_NOT_LEADER or no connection could be made, which says that nothing was
done; a read also without an answer, unless it was too late from a manager that still leads. A change without an answer raises RpcOutcomeUnknown and is never
sent again: it may have happened. `leader_retry_count` bounds the repeats, or, if it is above 0, `failover_seconds` from the first failure on. See
http_route for how the leader is followed.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from kvcm.client.errors import AccessDenied, ClientError, InvalidCall, InvalidClientConfig, RpcFailed, RpcOutcomeUnknown, service_error
from kvcm.client.http_route import Entry, RefreshRules, Route, status_code
from kvcm.client.http_transport import HttpTransport, NotSent, Origin, TransportFailed
from kvcm.client.security import PLAIN, ClientSecurity
from kvcm.common.errors import ErrorCode

_HEADERS = {"Accept": "application/json", "Content-Type": "application/json"}
_NOT_LEADER = "SERVER_NOT_LEADER"
_MAX_REPEATS = 100
_MAX_SECONDS = 86_400.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 0.5
# The others change nothing, or (registerInstance) the same thing again.
_CHANGES = frozenset(("startWriteCache", "finishWriteCache", "removeCache", "trimCache", "reportEvent"))
# What a reply without a code means.
_BY_HTTP_STATUS = {
    400: int(ErrorCode.INVALID_ARGUMENT),
    413: int(ErrorCode.INVALID_ARGUMENT),
    429: int(ErrorCode.SERVICE_NOT_READY),
    503: int(ErrorCode.SERVICE_NOT_READY),
}
# Codes that only the meta service has, by name; the numbers are those of the wire.
_MORE_CODES = {"NODE_NOT_REGISTERED": 10, "SNAPSHOT_IN_PROGRESS": 11, "SNAPSHOT_RATE_LIMITED": 13, "SNAPSHOT_REQUIRED": 14}

Json = dict[str, Any]
_Error = TypeVar("_Error", bound=ClientError)


class KvCacheManagerClient:
    """`base_url`: http(s)://host:port, static://host:port[,host:port...], dns://name[:port] or dns+srv://name. Close it, or use it in a `with` block."""

    def __init__(
        self,
        base_url: str,
        *,
        instance_id: str = "",
        auto_discover_leader: bool = False,
        leader_retry_count: int = 1,
        leader_retry_base_interval_seconds: float = 0.005,
        discovery_refresh_interval_seconds: float = 30,
        min_discover_interval_seconds: float = 1,
        request_timeout_seconds: float = 1.0,
        failover_seconds: float = 0.0,
        security: ClientSecurity = PLAIN,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Raises InvalidClientConfig, Unsupported for vipserver:// and spectrum://, NotReady for a name that cannot be looked up. A leader that is not found is
        no error yet. Members of a list are spoken to over https if `security` has TLS.

        With `auto_discover_leader`, asks `base_url` who leads (at most one request time-out for each of up to three members of a list).
        """
        self._timeout = _seconds("request_timeout_seconds", request_timeout_seconds)
        self._repeats = _repeats(leader_retry_count) if auto_discover_leader else 0
        self._failover = _seconds("failover_seconds", failover_seconds, zero=True) if auto_discover_leader else 0.0
        self._now = now
        self._base = _seconds("leader_retry_base_interval_seconds", leader_retry_base_interval_seconds, zero=True)
        rules = RefreshRules(
            auto_discover_leader,
            _seconds("discovery_refresh_interval_seconds", discovery_refresh_interval_seconds),
            _seconds("min_discover_interval_seconds", min_discover_interval_seconds, zero=True),
        )
        self._instance_id = instance_id
        self._security = security
        self._sleep = sleep
        self._draw = draw
        self._transport = HttpTransport(security.ssl_context, now=now)
        self._route = Route(Entry(base_url, "https" if security.tls is not None else "http"), rules, self._ask_leader, now)
        self._route.start()

    @classmethod
    def from_connector_config(cls, config: Mapping[str, Any], *, security: ClientSecurity = PLAIN) -> KvCacheManagerClient:
        """From the settings that the engine connectors share: `manager_uri` and the constructor's arguments by name. Other keys are not looked at."""
        if not config.get("manager_uri"):
            raise InvalidClientConfig("manager_uri is required: the manager's http(s) or static:// address")
        return cls(config["manager_uri"], security=security, **{name: config[name] for name in _CONFIGURABLE if name in config})

    def __enter__(self) -> KvCacheManagerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the background refresh and close connections; later calls raise RpcFailed. Idempotent."""
        self._route.close()
        self._transport.close()

    @property
    def base_url(self) -> str:
        """Where requests go now."""
        return self._route.target.url

    def register_instance(self, data: Json, check_response: bool = True) -> Json:
        return self._call("registerInstance", data, check_response)

    def get_instance_info(self, data: Json, check_response: bool = True) -> Json:
        return self._call("getInstanceInfo", data, check_response)

    def get_cache_meta(self, data: Json, check_response: bool = True) -> Json:
        return self._call("getCacheMeta", data, check_response)

    def get_cache_meta_detail(self, data: Json, check_response: bool = True) -> Json:
        return self._call("getCacheMetaDetail", data, check_response)

    def get_cache_location(self, data: Json, check_response: bool = True) -> Json:
        return self._call("getCacheLocation", data, check_response)

    def get_cache_location_len(self, data: Json, check_response: bool = True) -> Json:
        return self._call("getCacheLocationLen", data, check_response)

    def get_cache_locations_by_backend(self, data: Json, check_response: bool = True) -> Json:
        return self._call("getCacheLocationsByBackend", data, check_response)

    def get_host_cache_state(self, data: Json, check_response: bool = True) -> Json:
        return self._call("getHostCacheState", data, check_response)

    def start_write_cache(self, data: Json, check_response: bool = True) -> Json:
        return self._call("startWriteCache", data, check_response)

    def finish_write_cache(self, data: Json, check_response: bool = True) -> Json:
        return self._call("finishWriteCache", data, check_response)

    def remove_cache(self, data: Json, check_response: bool = True) -> Json:
        return self._call("removeCache", data, check_response)

    def trim_cache(self, data: Json, check_response: bool = True) -> Json:
        return self._call("trimCache", data, check_response)

    def get_cluster_info(self, data: Json, check_response: bool = True) -> Json:
        return self._call("getClusterInfo", data, check_response)

    def report_event(self, data: Json, check_response: bool = True) -> Json:
        return self._call("reportEvent", data, check_response)

    def _call(self, api: str, data: Json, check: bool) -> Json:
        body = _encoded(api, data)
        target = self._route.target
        status, reply, problem = self._try(target, api, body)
        attempt, until = 0, self._now() + self._failover
        while problem is not None or status_code(reply) == _NOT_LEADER:
            attempt += 1
            if not self._rest(attempt, until):
                break
            if not self._route.refresh():
                continue
            if problem is not None and problem.may_have_run and problem.grpc_status == "DEADLINE_EXCEEDED" and self._route.target == target:
                break  # a leader that is too slow gets no second copy of its work
            target = self._route.target
            status, reply, problem = self._try(target, api, body)
        if problem is not None:
            raise problem
        if check:
            _check(api, target, status, reply)
        return reply

    def _try(self, target: Origin, api: str, body: bytes) -> tuple[int, Json, RpcFailed | None]:
        """(status, reply, None), or in place of a reply why there was none, if the request may be sent again. Raises the other failures."""
        try:
            return *self._send(target, api, body), None
        except RpcFailed as error:
            if isinstance(error, RpcOutcomeUnknown) or error.grpc_status not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                raise
            return 0, {}, error

    def _rest(self, attempt: int, until: float) -> bool:
        """Wait a little before the next attempt. False: there is none."""
        if not self._failover:
            if attempt > self._repeats:
                return False
            self._sleep(self._base * attempt + self._draw(0, self._base))
            return True
        pause = min(max(self._base, _FIRST_PAUSE_S) * 2 ** min(attempt - 1, 10), _MAX_PAUSE_S) * self._draw(0.5, 1.0)
        if attempt > _MAX_REPEATS or self._now() + pause >= until:
            return False
        self._sleep(pause)
        return True

    def _send(self, target: Origin, api: str, body: bytes) -> tuple[int, Json]:
        """One request, never repeated. A failure wakes the refresh of the route, for the requests after this one."""
        try:
            status, content = self._post(target, api, body)
        except TransportFailed as error:
            self._route.doubt()
            raise _failure(api, target, error) from None
        try:
            reply = json.loads(content)
            if not isinstance(reply, dict):
                raise ValueError
        except (ValueError, RecursionError):
            reason = f"answered with HTTP status {status} and something that is not a JSON object; is this the meta HTTP port of a manager?"
            raise _failure(api, target, TransportFailed(reason), refused=400 <= status < 500) from None
        return status, reply

    def _post(self, target: Origin, api: str, body: bytes) -> tuple[int, bytes]:
        headers = _HEADERS | dict(self._security.metadata())
        return self._transport.post(target, f"/api/{api}", body, headers, self._timeout)

    def _ask_leader(self, seed: Origin, trace_id: str) -> tuple[int, bytes]:
        return self._post(seed, "getClusterInfo", _encoded("getClusterInfo", {"trace_id": trace_id, "instance_id": self._instance_id}))


_CONFIGURABLE = (
    "instance_id",
    "auto_discover_leader",
    "leader_retry_count",
    "leader_retry_base_interval_seconds",
    "discovery_refresh_interval_seconds",
    "min_discover_interval_seconds",
    "request_timeout_seconds",
    "failover_seconds",
)


def _encoded(api: str, data: Json) -> bytes:
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidCall(f"the request of {api} cannot be written as JSON: {error}") from None


def _failure(api: str, target: Origin, error: TransportFailed, *, refused: bool = False) -> RpcFailed:
    """`refused`: the server answered that it did not run the request."""
    sent = not isinstance(error, NotSent) and not refused
    name = "DEADLINE_EXCEEDED" if error.timed_out else "UNAVAILABLE"
    sentence = f"{api}: the manager at {target.url} {error.reason}"
    if sent and api in _CHANGES:
        return RpcOutcomeUnknown(f"{sentence}; it may have happened all the same", grpc_status=name)
    return RpcFailed(sentence, grpc_status=name, may_have_run=sent)


def _check(api: str, target: Origin, status: int, reply: Json) -> None:
    code = status_code(reply)
    if status == 200 and code == "OK":
        return
    if status in (401, 403):
        denied = f"{api}: the manager at {target.url} did not accept the token of this client, or wants one (HTTP status {status})"
        raise _asserting(AccessDenied)(denied, grpc_status="UNAUTHENTICATED", may_have_run=False)
    said = reply.get("header")
    header: Json = said if isinstance(said, dict) else {}
    message = _text(header["status"].get("message")) if code else ""
    if status != 200:
        message = f"HTTP status {status}{'; the request cannot be read as one of this API' if status == 400 else ''}"
    refusal = service_error(api, _number(code) or _BY_HTTP_STATUS.get(status, 0), message, _text(header.get("request_id")))
    raise _asserting(type(refusal))(refusal.message, service_code=refusal.service_code, request_id=refusal.request_id)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(code: str) -> int:
    if code in _MORE_CODES:
        return _MORE_CODES[code]
    return int(ErrorCode[code]) if code in ErrorCode.__members__ else int(ErrorCode.UNKNOWN_ERROR) if code else 0


def _asserting(kind: type[_Error]) -> type[_Error]:
    """The same error, and an AssertionError too: what upstream's client raises and its callers catch."""
    made = _ASSERTING.get(kind)
    if made is None:
        made = _ASSERTING[kind] = type(kind.__name__, (kind, AssertionError), {"__module__": kind.__module__})
    return cast("type[_Error]", made)


_ASSERTING: dict[type, type] = {}


def _seconds(name: str, value: float, *, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= _MAX_SECONDS or (not value and not zero):
        raise InvalidClientConfig(f"{name} must be a number of seconds {'from 0' if zero else 'above 0'} and up to {_MAX_SECONDS:g}")
    return float(value)


def _repeats(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MAX_REPEATS:
        raise InvalidClientConfig(f"leader_retry_count must be a whole number from 0 to {_MAX_REPEATS}")
    return count
