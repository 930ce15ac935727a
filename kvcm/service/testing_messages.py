"""Random requests for every RPC that cannot leave a folder: a hypothesis strategy per message, made from its descriptor.

Danger: some fields make a manager write where they say. Those take their values from a list below `folder` or from paths that nobody can write.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from kvcm.protocol.json_writer import is_map

RESERVED = ("storage", "instance_group", "instance", "account", "__kvcm_fence", "..", "../x", "a/b", "/", "\x00", "x" * 5000)
_DEPTH = 4
_FEW = 3
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, (1 << 64) - 1),
}
_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def requests(cls: Any, folder: str) -> st.SearchStrategy[Any]:
    """Instances of `cls`, often with names that a manager with the built-in group knows."""
    return _message(cls.DESCRIPTOR, folder, _DEPTH).map(lambda fill: fill(cls()))


def safe_paths(folder: str) -> tuple[str, ...]:
    """Values for every field that names a place to write."""
    return (f"{folder}/a/", f"{folder}/b", f"{folder}/a/../c", "", "relative/x", "/dev/null/x", "/proc/kvcm-not-there", "\x00", "file://", f"{folder}/é ?#%")


def is_place(name: str) -> bool:
    return name.endswith(("path", "uri", "mountpoint", "root_dir", "domain", "address", "server", "host")) and name != "host_ip_port"


def _message(descriptor: Any, folder: str, depth: int) -> st.SearchStrategy[Any]:
    parts = {field.name: _optional(field, folder, depth) for field in descriptor.fields}
    members = {field.name for group in descriptor.oneofs if len(group.fields) > 1 for field in group.fields}

    def filler(values: dict[str, Any]) -> Any:
        def fill(message: Any) -> Any:
            for name, value in values.items():
                if value is not None:
                    _put(message, name, value)
            return message

        return fill

    single = st.fixed_dictionaries({name: part for name, part in parts.items() if name not in members})
    if not members:
        return single.map(filler)
    choice = st.sampled_from(sorted(members)).flatmap(lambda name: parts[name].map(lambda value: {name: value}))
    return st.builds(lambda one, other: filler(one | other), single, choice)


def _put(message: Any, name: str, value: Any) -> None:
    target = getattr(message, name)
    if callable(value):
        value(target)
        target.SetInParent()
    elif isinstance(value, dict):
        target.update(value)
    elif isinstance(value, list):
        for item in value:
            item(target.add()) if callable(item) else target.append(item)
    else:
        setattr(message, name, value)


def _optional(field: FieldDescriptor, folder: str, depth: int) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), _value(field, folder, depth), _value(field, folder, depth))


def _value(field: FieldDescriptor, folder: str, depth: int) -> st.SearchStrategy[Any]:
    if is_map(field):
        return st.dictionaries(_TEXT, _TEXT, max_size=_FEW)
    if field.message_type is not None:
        if depth == 0:
            return st.none()
        inner = _message(field.message_type, folder, depth - 1)
    else:
        inner = _scalar(field, folder)
    return st.lists(inner, max_size=_FEW) if field.is_repeated else inner


def _scalar(field: FieldDescriptor, folder: str) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        numbers = [value.number for value in field.enum_type.values]
        return st.one_of(st.sampled_from(numbers), st.sampled_from(numbers), st.sampled_from((-1, 99, 1 << 30)))
    if field.cpp_type in _INTEGERS:
        return st.one_of(st.integers(0, 4), _INTEGERS[field.cpp_type])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return st.floats()
    return st.one_of(st.just(known_name(field.name)), _text(field.name, folder))


def known_name(field: str) -> str:
    """A value of a text field that a manager with the built-in group and an instance `i` knows."""
    known = {"instance_id": "i", "instance_group": "default", "instance_group_name": "default", "storage_unique_name": "nfs_01", "name": "default"}
    return known.get(field, "" if is_place(field) else "x")


def _text(name: str, folder: str) -> st.SearchStrategy[str]:
    if is_place(name):
        return st.sampled_from(safe_paths(folder))
    if name in ("instance_id", "instance_group", "global_unique_name", "name", "user_name"):
        return st.one_of(st.sampled_from(RESERVED), _TEXT)
    return _TEXT
