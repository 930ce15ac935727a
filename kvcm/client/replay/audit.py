"""What the manager holds after a replay, asked through its public interfaces: the state of every block, and the usage it reports.

States come from GetCacheMeta, a page at a time; usage from the gauge `cache_manager_instance.byte_size` on `GET /metrics` of the admin HTTP
listener. Nothing here looks inside the manager.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from kvcm.client.errors import ClientError
from kvcm.client.replay.errors import AuditFailed
from kvcm.client.security import PLAIN, ClientSecurity
from kvcm.client.types import Metas
from kvcm.common.uri import InvalidUri, parse_uri

SERVING = "CLS_SERVING"
NOT_FOUND = "CLS_NOT_FOUND"
_PAGE = 1000
_MAX_PAGE_BYTES = 64 << 20
# The prefix of all names can be configured, and labels may come in any order.
_SAMPLE = re.compile(r"^\w*cache_manager_instance_byte_size\{(?P<labels>.*)\} (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class MetaReader(Protocol):
    """The part of MetaClient that an audit uses."""

    def match_meta(self, keys: Sequence[int]) -> Metas: ...


@dataclass(frozen=True, slots=True)
class Audit:
    """`states` counts blocks by state; `stored_bytes` sums the sizes in the locations of SERVING blocks."""

    states: dict[str, int]
    stored_bytes: int

    @property
    def unsettled(self) -> int:
        """Blocks that are neither SERVING nor absent: still being written or deleted."""
        return sum(count for state, count in self.states.items() if state not in (SERVING, NOT_FOUND))


def take_audit(meta: MetaReader, keys: Iterable[int]) -> Audit:
    """Ask for every key's state. Raises AuditFailed."""
    states: Counter[str] = Counter()
    stored = 0
    for page in _pages(keys):
        try:
            found = meta.match_meta(page)
        except ClientError as error:
            raise AuditFailed(f"the state of the blocks could not be read: {error.message}") from error
        if len(found.metas) != len(page) or len(found.locations) != len(page):
            raise AuditFailed("the manager did not answer for every block that it was asked about")
        for location, text in zip(found.locations, found.metas, strict=True):
            state = _state(text)
            states[state] += 1
            if state == SERVING:
                stored += sum(_size(spec.uri) for spec in location.specs)
    return Audit(dict(states), stored)


def fetch_metrics(url: str, timeout_s: float = 15.0, security: ClientSecurity = PLAIN) -> str:
    """The text of a metrics page. Raises AuditFailed, InvalidClientConfig (files of `security`)."""
    if not url.startswith(("http://", "https://")):
        raise AuditFailed("the address of the metrics page must start with http:// or https://")
    # A manager is a neighbour: proxies of the environment are for the world outside.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https://"):
        handlers.append(urllib.request.HTTPSHandler(context=security.ssl_context()))
    request = urllib.request.Request(url, headers=dict(security.metadata()))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as reply:
            body: bytes = reply.read(_MAX_PAGE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = f"status {error.code}" if isinstance(error, urllib.error.HTTPError) else "it cannot be reached"
        raise AuditFailed(f"the metrics page {url} could not be read: {reason}") from error
    if len(body) > _MAX_PAGE_BYTES:
        raise AuditFailed(f"the metrics page {url} is larger than {_MAX_PAGE_BYTES} bytes")
    return body.decode(errors="replace")


def usage_bytes(metrics: str, group: str, instance: str) -> int:
    """Bytes that a metrics page reports for an instance; 0 when it has no such series yet. Raises AuditFailed for a value that is no number."""
    for line in metrics.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        labels = {name: _unescaped(value) for name, value in _LABEL.findall(sample["labels"])}
        if labels.get("instance_group") == group and labels.get("instance_id") == instance:
            return _whole(sample["value"])
    return 0


def _whole(text: str) -> int:
    try:
        # A float has no room for every byte count.
        return int(text) if text.isascii() and text.isdigit() else int(float(text))
    except (ValueError, OverflowError) as error:
        raise AuditFailed("the metrics page has a usage that is not a number") from error


def _pages(keys: Iterable[int]) -> Iterator[list[int]]:
    source = iter(keys)
    while page := list(islice(source, _PAGE)):
        yield page


def _state(text: str) -> str:
    try:
        return str(json.loads(text)["status"])
    except (ValueError, TypeError, KeyError) as error:
        raise AuditFailed("the manager described a block with something that is not a state") from error


def _size(uri: str) -> int:
    try:
        return parse_uri(uri).size()
    except InvalidUri as error:
        raise AuditFailed(f"the manager keeps an address that cannot be read: {error.message}") from error


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)
