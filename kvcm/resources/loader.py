"""Resource files: files, directories, many documents in one file, `kind: List`, standard input.

Files may come from anywhere, so reading is bounded before anything is built: bytes per file, nodes after expansion of aliases, depth, documents.
YAML is read with the rules that Kubernetes' tools share (true/false only, no dates, no base-60 numbers); a key that stands twice is an error.
Errors name file, document and field, never a value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvcm.resources.base import API_VERSION, GROUP
from kvcm.resources.errors import Problem, ResourceError
from kvcm.resources.parse import MODELS, foreign_version, parse_resource
from kvcm.resources.plan import Sourced
from kvcm.resources.yaml_text import MAX_BYTES, YamlProblem, read_documents

MAX_FILES = 1000
MAX_RESOURCES = 5000
_SUFFIXES = {".yaml", ".yml", ".json"}
_KUSTOMIZATIONS = {"kustomization.yaml", "kustomization.yml", "Kustomization"}
_SKIPPED_KIND = "KVCacheManager"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Resources in the order they were read, and sentences for the user about what was skipped."""

    resources: tuple[Sourced, ...]
    notices: tuple[str, ...]


def load(paths: Iterable[str], stdin: BinaryIO | None = None) -> Loaded:
    """Read every path: a file, a directory (its YAML and JSON files, sorted, not its subdirectories) or `-` for standard input.

    Raises ResourceError with every problem of every file, so that one run shows all of them.
    """
    resources: list[Sourced] = []
    problems: list[Problem] = []
    skipped = 0
    for source in _sources(paths, problems):
        try:
            found, left_out = _load_text(source, _read(source, stdin))
        except ResourceError as error:
            problems += error.problems
            continue
        resources += found
        skipped += left_out
        if len(resources) > MAX_RESOURCES:
            raise ResourceError([Problem(f"more than {MAX_RESOURCES} resources in one run; apply them in parts")])
    problems += _duplicates(resources)
    if problems:
        raise ResourceError(problems)
    if not resources and not skipped:
        raise ResourceError([Problem(f"found no resources of {API_VERSION} in the given files")])
    notices = (f"{skipped} {_SKIPPED_KIND} skipped: only the operator acts on it; here the manager is the one given by --manager",)
    return Loaded(tuple(resources), notices if skipped else ())


def _sources(paths: Iterable[str], problems: list[Problem]) -> Iterator[str]:
    seen: set[str] = set()
    for path in paths:
        for source in _expand(path, problems):
            if source in seen:
                continue
            seen.add(source)
            if len(seen) > MAX_FILES:
                raise ResourceError([Problem(f"more than {MAX_FILES} files in one run; apply them in parts")])
            yield source


def _expand(path: str, problems: list[Problem]) -> list[str]:
    if path == "-":
        return [path]
    place = Path(path)
    if place.is_dir():
        try:
            entries = sorted(place.iterdir())
        except OSError as error:
            problems.append(Problem(f"cannot be listed ({error.strerror})", where=path))
            return []
        files = [entry for entry in entries if entry.suffix in _SUFFIXES and not entry.name.startswith(".") and entry.is_file()]
        files = [entry for entry in files if entry.name not in _KUSTOMIZATIONS]
        if not files:
            problems.append(Problem("the directory holds no .yaml, .yml or .json file", where=path))
        return [str(entry) for entry in files]
    if place.name in _KUSTOMIZATIONS:
        problems.append(Problem("is a kustomization, which only kubectl reads; give its directory or the files it lists", where=path))
        return []
    return [path]


def _read(source: str, stdin: BinaryIO | None) -> bytes:
    try:
        if source == "-":
            data = (stdin or sys.stdin.buffer).read(MAX_BYTES + 1)
        else:
            with open(source, "rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ResourceError([Problem(f"cannot be read ({error.strerror})", where=_label(source))]) from None
    if len(data) > MAX_BYTES:
        raise ResourceError([Problem(f"is larger than {MAX_BYTES // 1024} KiB", where=_label(source))])
    return data


def _label(source: str) -> str:
    return "standard input" if source == "-" else source


def _load_text(source: str, data: bytes) -> tuple[list[Sourced], int]:
    label = _label(source)
    try:
        documents = read_documents(data)
    except YamlProblem as error:
        raise ResourceError([Problem(str(error), where=label)]) from None
    found: list[Sourced] = []
    problems: list[Problem] = []
    skipped = 0
    for number, document in enumerate(documents, 1):
        place = f"{label}, document {number}" if len(documents) > 1 else label
        for where, item in _items(document, place):
            try:
                if _is_manager(item):
                    skipped += 1
                    continue
                found.append(_one(item, where))
            except ResourceError as error:
                problems += [problem.at(where) for problem in error.problems]
    if problems:
        raise ResourceError(problems)
    return found, skipped


def _items(document: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The resources in one document: none in an empty one, those of a List, or the document itself."""
    if document is None:
        return
    if isinstance(document, dict) and _is_list(document):
        for index, item in enumerate(document["items"]):
            yield f"{where}, item {index + 1}", item
        return
    yield where, document


def _is_list(document: dict[str, Any]) -> bool:
    kind, version = document.get("kind"), document.get("apiVersion")
    ours = version == "v1" and kind == "List"
    ours = ours or (version == API_VERSION and isinstance(kind, str) and kind.endswith("List"))
    return ours and isinstance(document.get("items"), list)


def _is_manager(item: Any) -> bool:
    return isinstance(item, dict) and item.get("apiVersion") == API_VERSION and item.get("kind") == _SKIPPED_KIND


def _one(item: Any, where: str) -> Sourced:
    if not isinstance(item, dict):
        raise ResourceError([Problem("must be a mapping with apiVersion, kind, metadata and spec")])
    version = foreign_version(item)
    if version is not None:
        raise ResourceError([Problem(f"this version of kvcm knows only {API_VERSION}", "apiVersion")])
    for field in ("apiVersion", "kind"):
        if not isinstance(item.get(field), str):
            raise ResourceError([Problem("is required and must be a text", field)])
    if not item["apiVersion"].startswith(f"{GROUP}/"):
        raise ResourceError([Problem(f"kvcm applies resources of {API_VERSION} only; leave this document to kubectl", "apiVersion")])
    if item["kind"] not in MODELS:
        raise ResourceError([Problem(f"must be one of {', '.join(MODELS)}", "kind")])
    return Sourced(parse_resource(item), where)


def _duplicates(resources: Sequence[Sourced]) -> list[Problem]:
    first: dict[tuple[str, str, str], Sourced] = {}
    problems = []
    for item in resources:
        metadata = item.resource.metadata
        other = first.setdefault((item.resource.kind, metadata.namespace, metadata.name), item)
        if other is not item:
            problems.append(Problem(f"{item.resource.kind} {metadata.name} was already read from {other.where}", where=item.where))
    return problems
