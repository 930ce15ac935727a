"""Families as Prometheus text, format 0.0.4 (wire contract 3.7).

Not prometheus-client's own writer: it insists on `_total` at the end of every counter, and the counters of this contract are called
`kvcm_service_query_counter`. A test parses the result with that library's parser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from kvcm.metrics import catalogue
from kvcm.metrics.families import MAX_SERIES_PER_FAMILY, AnyFamily, Family, Histogram, Labels

_OTHER = re.compile(r"[^A-Za-z0-9_]")


def sanitise(prefix: str, name: str) -> str:
    """The Prometheus name of a dotted name."""
    text = _OTHER.sub("_", f"{prefix}_{name}" if prefix else name)
    return f"_{text}" if text[:1].isdigit() else text


def write_text(prefix: str, families: Iterable[AnyFamily]) -> str:
    """One HELP and one TYPE line per family (I-ME-2); families without a sample are left out. A name that came before is left out too."""
    lines: list[str] = []
    seen: set[str] = set()
    dropped = 0
    for family in families:
        name = sanitise(prefix, family.name)
        if not family.samples or name in seen:
            continue
        seen.add(name)
        dropped += max(0, len(family.samples) - MAX_SERIES_PER_FAMILY)
        kind = family.kind if isinstance(family, Family) else "histogram"
        _head(lines, name, family.name, family.help, kind)
        if isinstance(family, Histogram):
            _histogram(lines, name, family)
            continue
        for values, number in family.samples[:MAX_SERIES_PER_FAMILY]:
            lines.append(f"{name}{_labels(family.label_names, values)} {_number(number)}")
    spec = catalogue.SERIES_DROPPED
    own = sanitise(prefix, spec.name)
    _head(lines, own, spec.name, spec.text, spec.kind)
    lines.append(f"{own} {dropped}\n")
    return "\n".join(lines)


def _head(lines: list[str], name: str, dotted: str, text: str, kind: str) -> None:
    help_text = f"{dotted} {text}".replace("\\", r"\\").replace("\n", r"\n")
    lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}")


def _histogram(lines: list[str], name: str, family: Histogram) -> None:
    bounds = [f"{bound:g}" for bound in family.bounds] + ["+Inf"]
    names = (*family.label_names, "le")
    for values, counts, total in family.samples[:MAX_SERIES_PER_FAMILY]:
        running = 0
        for bound, count in zip(bounds, counts, strict=True):
            running += count
            lines.append(f"{name}_bucket{_labels(names, (*values, bound))} {running}")
        labels = _labels(family.label_names, values)
        lines += (f"{name}_sum{labels} {_number(total)}", f"{name}_count{labels} {running}")


def _labels(names: Labels, values: Labels) -> str:
    """Empty values are left out: to Prometheus an empty label is no label."""
    pairs = [f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True) if value]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
