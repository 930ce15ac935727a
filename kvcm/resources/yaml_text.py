"""Bounded, strict YAML.

Danger: a few lines of YAML can expand to millions of nodes through aliases, or nest deeply enough to exhaust the stack. The text is therefore
scanned once as a stream of events, which is flat and cheap, and nodes are counted as if every alias were written out; only then is it built.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_BYTES = 1024 * 1024
MAX_NODES = 100_000
MAX_DEPTH = 50
MAX_DOCUMENTS = 1000
# Longer digits are no number that any field takes, and slow to convert.
MAX_NUMBER_CHARS = 64


class YamlProblem(ValueError):
    """The text is not YAML that we read; the message is a sentence with line and column."""


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2's core schema, and without duplicate keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlProblem(f"a key must be a plain text{_place(key.start_mark)}")
            if key.value == "<<" and key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise YamlProblem(f"a key must be a text; put it in quotes{_place(key.start_mark)}")
            if key.value in seen:
                raise YamlProblem(f"the key {key.value[:80]!r} stands twice{_place(key.start_mark)}")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("merge", r"^(?:<<)$", "<"),
):
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def _construct_int(loader: _StrictLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if len(text) > MAX_NUMBER_CHARS:
        raise YamlProblem(f"a number may have at most {MAX_NUMBER_CHARS} digits{_place(node.start_mark)}")
    try:
        return int(text)
    except ValueError:
        raise YamlProblem(f"this is not a whole number{_place(node.start_mark)}") from None


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def read_documents(data: bytes) -> list[Any]:
    """All documents of a text, empty ones as None. Raises YamlProblem for text that is broken, too large or too deep."""
    if len(data) > MAX_BYTES:
        raise YamlProblem(f"the text is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise YamlProblem("the text is not UTF-8") from None
    try:
        _scan(text)
        return list(yaml.load_all(text, Loader=_StrictLoader))
    except yaml.MarkedYAMLError as error:
        what = error.problem or "it cannot be read"
        raise YamlProblem(f"the text is not valid YAML: {what}{_place(error.problem_mark)}") from None
    except yaml.YAMLError:
        raise YamlProblem("the text is not valid YAML: it holds characters that YAML does not allow") from None
    except YamlProblem:
        raise
    except (ValueError, TypeError):
        # Explicit tags such as `!!float x` reach Python's own conversions.
        raise YamlProblem("the text holds a value that does not fit its type") from None


def _scan(text: str) -> None:
    """Count nodes with aliases expanded, depth and documents; recursive aliases end here too."""
    sizes: dict[str, int] = {}
    stack: list[tuple[str | None, int]] = []
    total = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            sizes.clear()
            if documents > MAX_DOCUMENTS:
                raise YamlProblem(f"the text holds more than {MAX_DOCUMENTS} documents")
            continue
        before = total
        if isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise YamlProblem(f"an alias refers to something that is not complete before it{_place(event.start_mark)}")
            total += sizes[event.anchor]
        elif isinstance(event, yaml.CollectionStartEvent):
            total += 1
            stack.append((event.anchor, before))
            if len(stack) > MAX_DEPTH:
                raise YamlProblem(f"the text is nested more than {MAX_DEPTH} levels deep{_place(event.start_mark)}")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = stack.pop()
            if anchor:
                sizes[anchor] = total - start
        if total > MAX_NODES:
            raise YamlProblem(f"the text holds more than {MAX_NODES} values once its aliases are written out")


def _place(mark: Any) -> str:
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
