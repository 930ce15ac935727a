"""Write docs/metrics.md from the catalogue, or check that it is up to date.

python -m kvcm.metrics.generate [--check] [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvcm.metrics.catalogue import FAMILIES
from kvcm.metrics.text import sanitise

_DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"

_INTRO = """# Metrics

*You watch a manager, or have dashboards made for the C++ manager, and want to know what there is.*

<!-- Generated from kvcm/metrics/catalogue.py by `python -m kvcm.metrics.generate`. Do not edit. -->

`GET /metrics` on the admin HTTP port gives every family in Prometheus' text format 0.0.4 (`kvcm.metrics.enable_prometheus`; `kvcm.metrics.prometheus_prefix`
replaces the prefix `kvcm`). `GetMetrics` on the admin service gives the same as messages, under the dotted names. Names that upstream has are upstream's. Its
page adds the process' own numbers (`process_*`, `python_*`).

- Counters never decrease while the process lives. Gauges of "the last call" say what they say: use the counters for rates and means.
- A call is counted under its instance if that is registered, else under its `api_name` alone, so sums are right. Text that a caller made up is never a
  label.
- When an instance, group or storage is removed, its series go with it. At most 2,000 instances have series of their own and a page has at most 20,000 series
  of a family; `metrics.dropped_series` tells how many are missing.
- Latency: `service.query_seconds` is a histogram by `api_name`, from the parsed request to the reply.

What to alert on first: `coordination.healthy` is 0; `data_storage.healthy_status` is 0; `write_session.expired_counter` grows (writers die or are too slow);
`cache_manager_group.usage_ratio` near 1; `deleter.unproven_counter` grows (a storage cannot prove that bytes are gone); `loop.lag_max_seconds` above 0.02;
`auth.refused_counter` grows.

## Reporters

| `kvcm.metrics.reporter_type` | what happens besides `/metrics` |
|---|---|
| `local` (default), empty | nothing |
| `logging` | each `kvcm.metrics.report_interval_ms` one short line per family that has changed, to logger `kvcm.metrics.report`: sums, no single series |
| `dummy` | nothing |
| `kmonitor` | accepted with a warning, acts as `local` |

Anything else is an error at the start. (Older upstream versions took an unknown word, or none, for `logging`; newer ones refuse it.)
"""

_ABSENT = """
## Names of upstream that do not exist here

| name | why |
|---|---|
| `service.request_queue_size` | there is no queue before a call; `service.requests_in_flight` tells how many are being answered |
| `http.service_query_rt_us_sum`, `http.request_context_rt_us_sum` | the same as `http.service_callback_time_us_sum` and `http.handler_time_us_sum` |
| `manager.batch_get_*`, `manager.lock_write_location_retry_times`, `manager.put_write_location_manager_us` | no such step: nothing is locked or retried |
| `meta_searcher.*`, the other `meta_indexer.*` | reads never leave memory, nothing is (de)serialised per read, there is no second cache |
| per-instance series of `manager.filter_write_cache_time_us` and the other parts of a write | kept for the manager as a whole |
| `data_storage.storage_usage_ratio` | the manager does not ask file systems for their size |
| revisit intervals | times of use are kept once per read, not once per block, so that a read costs no work per block |
| `cache_reclaimer.*`, `cache_gc.*`, `migration*` | these parts are not built yet |
"""


def render() -> str:
    """The page; the same text for the same catalogue, always."""
    parts = [_INTRO]
    section = ""
    for spec in FAMILIES:
        if spec.section != section:
            section = spec.section
            parts.append(f"\n## {section}\n\n| name | Prometheus | kind | labels | unit | meaning |\n|---|---|---|---|---|---|\n")
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        parts.append(f"| `{spec.name}` | `{sanitise('kvcm', spec.name)}` | {spec.kind} | {labels} | {spec.unit} | {spec.text} |\n")
    parts.append(_ABSENT)
    return "".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvcm.metrics.generate", description="Write docs/metrics.md from the catalogue of metrics.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not what the catalogue says")
    parser.add_argument("--out", type=Path, default=_DOCS, help="the page (default: docs/metrics.md)")
    options = parser.parse_args(argv)
    path: Path = options.out
    text = render()
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    if options.check:
        sys.stderr.write(f"{path.name} differs from the catalogue; run `python -m kvcm.metrics.generate`\n")
        return 1
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {path.name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
