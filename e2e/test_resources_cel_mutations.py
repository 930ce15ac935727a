"""Random damage to good samples: whatever comes out, the server and Python agree on it, except where Python alone can know (verdicts.py)."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e2e.cluster.cel import CelServer
from e2e.support.verdicts import only_python_sees, parsed, python_problems, without_nulls
from kvcm.resources.schema import KINDS

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
Place = tuple[str | int, ...]
PLURALS = {info.kind: info.plural for info in KINDS}
SAMPLES: list[Json] = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((Path(__file__).parents[1] / "tests/samples/good").glob("*.yaml"))]
_TEXTS = [
    "",
    "a",
    "A.b_c-d",
    "a..b",
    "a.-b",
    "-a",
    "/a",
    "/",
    "/a/../b",
    "..",
    "a/",
    "/a\n",
    " a",
    "a\u00a0b",
    "/a\u000bb",
    "/a\u3000",
    "a\x00",
    "a@b",
    "file:///d/n",
    "file:///d/",
    "1Gi",
    "1.5",
    "100m",
    "-1",
    "1e30",
    "9Ei",
    "1s",
    "200h",
    "999999999h",
    "memory",
    "file",
    "rdma",
    "Exists",
    "NoExecute",
    "true",
    "x" * 64,
    "x" * 300,
    "x" * 2000,
    "é" * 253,
]
_NUMBERS = [-1, 0, 1, 2, 65535, 65536, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 1.5]
_LEAVES = st.sampled_from([*_TEXTS, *_NUMBERS, True, False])
_VALUES = st.one_of(
    _LEAVES, st.none(), st.lists(_LEAVES, max_size=3), st.dictionaries(st.sampled_from(["type", "path", "name", "nosuch"]), _LEAVES, max_size=2)
)


def _places(node: Any, here: Place = ()) -> list[Place]:
    """Of every value within, the whole excluded."""
    steps: list[tuple[str | int, Any]] = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [place for step, child in steps for place in ((*here, step), *_places(child, (*here, step)))]


def _at(node: Any, place: Place) -> Any:
    for step in place:
        node = node[step]
    return node


@st.composite
def damaged(draw: st.DrawFn) -> Json:
    """A good sample with one to three things in its spec taken away, replaced, added, or taken from another sample of its kind."""
    document = deepcopy(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 3))):
        spec = document["spec"]
        places = _places(spec)
        if not places:
            break
        place = draw(st.sampled_from(places))
        holder, step = _at(spec, place[:-1]), place[-1]
        what = draw(st.sampled_from(["remove", "replace", "replace", "graft", "add"]))
        if what == "remove":
            del holder[step]
        elif what == "replace":
            holder[step] = draw(_VALUES)
        elif what == "add" and isinstance(holder, dict):
            holder[draw(st.sampled_from(["nosuch", "name", "type", "volume", "path", "value"]))] = draw(
                _LEAVES
            )  # an unknown null is refused, and not read as absent
        else:
            other = draw(st.sampled_from([sample for sample in SAMPLES if sample["kind"] == document["kind"] and sample["spec"]]))["spec"]
            step = draw(st.sampled_from(sorted(other)))
            spec[step] = deepcopy(other[step])
    return document


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(document=damaged())
def test_server_and_python_agree_on_damaged_samples(resources_server: CelServer, document: Json) -> None:
    given_fields = without_nulls(document)
    problems = python_problems(given_fields)
    verdict = resources_server.create(PLURALS[document["kind"]], document, dry_run=True)
    expected = [problem for problem in problems if not only_python_sees(problem, given_fields)]
    assert verdict.accepted is (not expected), (verdict.message, problems)
    if verdict.accepted and not problems:
        assert verdict.body["spec"] == parsed(given_fields).spec.model_dump(by_alias=True, exclude_none=True, mode="json")
