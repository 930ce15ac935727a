"""The proto files against the wire contract's tables (goldens/wire_fields.txt, wire_enums.txt): every message, field, enum and rpc, both ways."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvcm.protocol import generate

pytestmark = pytest.mark.unit

GOLDENS = Path(__file__).parent.parent / "goldens"
PACKAGES = ("meta", "admin", "debug", "kv_meta")
SERVICES = {"meta": "MetaService", "admin": "AdminService", "debug": "DebugService", "kv_meta": "MetaService"}
TYPES = {1: "double", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string"}


def module(package: str, suffix: str = "_pb2") -> ModuleType:
    return importlib.import_module(f"kvcm.protocol.{package}_service{suffix}")


def table(file: str, package: str) -> dict[str, str]:
    found: dict[str, str] = {}
    packages: list[str] = []
    for line in (GOLDENS / file).read_text().splitlines():
        if line.startswith("["):
            packages = line.strip("[]").split()
        elif "=" in line and not line.startswith("#") and package in packages:
            name, _, content = line.partition(" =")
            assert name not in found, f"{name} is listed twice for {package}"
            found[name] = content.strip()
    return found


def messages(descriptors: Any) -> Iterator[Any]:
    for descriptor in descriptors:
        yield descriptor
        yield from messages(descriptor.nested_types)


def short(full_name: str, package: str) -> str:
    return str(full_name).removeprefix(f"kv_cache_manager.proto.{package}.")


def spelled(field: Any, package: str) -> str:
    declared = field.message_type or field.enum_type
    kind = short(declared.full_name, package) if declared else TYPES[field.type]
    words = [str(field.number), field.name]
    if field.is_repeated:
        words.append("rep")
    elif field.containing_oneof is not None:
        words.append(f"one:{field.containing_oneof.name}" if len(field.containing_oneof.fields) > 1 else "opt")
    return " ".join([*words, kind])


@pytest.mark.parametrize("package", PACKAGES)
def test_every_message_has_the_numbers_names_and_types_of_the_contract(package: str) -> None:
    file = module(package).DESCRIPTOR
    assert file.package == f"kv_cache_manager.proto.{package}"
    actual = {
        short(descriptor.full_name, package): ", ".join(spelled(field, package) for field in sorted(descriptor.fields, key=lambda field: field.number))
        for descriptor in messages(file.message_types_by_name.values())
    }
    assert actual == table("wire_fields.txt", package)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_enum_and_rpc_is_that_of_the_contract(package: str) -> None:
    file = module(package).DESCRIPTOR
    actual = {
        name: ", ".join(f"{value.number} {value.name}" for value in sorted(enum.values, key=lambda value: value.number))
        for name, enum in file.enum_types_by_name.items()
    }
    for method in file.services_by_name[SERVICES[package]].methods:
        actual[f"rpc {method.name}"] = f"{method.input_type.name} {method.output_type.name}"
    assert actual == table("wire_enums.txt", package)
    assert list(file.services_by_name) == [SERVICES[package]]


@pytest.mark.parametrize("package", PACKAGES)
def test_files_live_under_our_own_name_in_the_descriptor_pool(package: str) -> None:
    file = module(package).DESCRIPTOR
    assert file.name == f"kvcm/protocol/{package}_service.proto"
    imports = ["google/protobuf/wrappers.proto"] if package == "admin" else []
    assert [dependency.name for dependency in file.dependencies] == imports


@pytest.mark.parametrize("package", PACKAGES)
def test_grpc_modules_import_without_a_warning_and_register_their_service(package: str) -> None:
    stubs = module(package, "_pb2_grpc")
    name = SERVICES[package]
    assert hasattr(stubs, f"{name}Stub")
    assert hasattr(stubs, f"{name}Servicer")


def test_meta_error_code_12_stays_reserved() -> None:
    numbers = module("meta").DESCRIPTOR.enum_types_by_name["ErrorCode"].values_by_number
    assert 12 not in numbers


def test_checked_in_modules_are_what_the_generator_makes() -> None:
    pytest.importorskip("grpc_tools")
    assert generate.main(["--check"]) == 0


def test_the_check_names_the_module_that_differs(tmp_path: Path) -> None:
    fresh, checked_in = tmp_path / "fresh", tmp_path / "old"
    for folder in (fresh, checked_in):
        folder.mkdir()
        for name in generate.generated_names():
            (folder / name).write_bytes(b"same")
    (checked_in / "meta_service_pb2.py").write_bytes(b"other")
    (checked_in / "debug_service_pb2.pyi").unlink()
    assert generate.differences(fresh, checked_in) == ["debug_service_pb2.pyi", "meta_service_pb2.py"]
