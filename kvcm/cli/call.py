"""`kvcm call`: any RPC of a manager over gRPC, with requests and replies as JSON. What grpcurl does, without schema files.

Built on our own schemas. Field names that a request type does not have are refused: the JSON API ignores them, which hides typing errors from people.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcm.cli.manager import DEFAULT_MANAGER, MANAGER_VARIABLE, add_manager_arguments, manager_address, security_of
from kvcm.cli.output import print_json, say
from kvcm.common.errors import InvalidArgument

META_VARIABLE = "KVCM_META"
DEFAULT_META = "127.0.0.1:6381"
_MAX_CHARS = 64 << 20
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class _Known:
    """One service: the module of its messages below kvcm.protocol, its full name, and where it is when --manager is not given."""

    module: str
    full_name: str
    variable: str = MANAGER_VARIABLE
    default: str = DEFAULT_MANAGER


_SERVICES = {
    "meta": _Known("meta_service", "kv_cache_manager.proto.meta.MetaService", META_VARIABLE, DEFAULT_META),
    "admin": _Known("admin_service", "kv_cache_manager.proto.admin.AdminService"),
    "debug": _Known("debug_service", "kv_cache_manager.proto.debug.DebugService"),
}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "call",
        help="call any RPC with JSON",
        description='Call any RPC of a manager over gRPC, such as: kvcm call meta/GetClusterInfo \'{"instance_id": "my-model"}\'',
        epilog="Exit code: 0 the reply's code is OK, 1 otherwise; the reply is printed in both cases.",
    )
    parser.add_argument("method", metavar="SERVICE/METHOD", nargs="?", help="meta, admin or debug (or a service's full name), and the RPC; see --list")
    parser.add_argument("request", metavar="JSON", nargs="?", default="{}", help="the request; @FILE reads a file, - standard input (default: {})")
    parser.add_argument("--list", action="store_true", help="list all RPCs and end")
    parser.add_argument("--force", action="store_true", help="let a removal also remove what is still referenced")
    default = f"meta: ${META_VARIABLE}, else {DEFAULT_META}; admin and debug: ${MANAGER_VARIABLE}, else {DEFAULT_MANAGER}"
    add_manager_arguments(parser, help_text=f"gRPC address of the service on one manager (default: {default})")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.list:
        for name in _SERVICES:
            for method in _methods(name):
                print(f"{name}/{method}")
        return 0
    if not options.method:
        raise InvalidArgument("name the call as SERVICE/METHOD, such as meta/GetClusterInfo; --list shows all")
    service, method = _find(options.method)
    known = _SERVICES[service]
    request = _request(_methods(service)[method], _text(options.request))
    address = manager_address(options.manager, known.variable, known.default)
    import asyncio

    reply = asyncio.run(_call(options, service, method, address, request))

    from kvcm.protocol.json_codec import message_to_plain

    print_json(message_to_plain(reply))
    status = reply.header.status
    if status.code == 1:
        return 0
    code = type(status).DESCRIPTOR.fields_by_name["code"].enum_type.values_by_number.get(status.code)
    say(f"error: {code.name if code else status.code}: {status.message or 'no message'}")
    return 1


async def _call(options: argparse.Namespace, service: str, method: str, address: str, request: Any) -> Any:
    from kvcm.cli.manager import when_reachable
    from kvcm.client.rpc_channel import RpcChannel
    from kvcm.common.errors import NotReady, OutcomeUnknown

    # All of them but these may change something; their silence has to be told from "nothing happened".
    unanswered = NotReady if method.startswith(("Get", "List", "Check", "Gen")) else OutcomeUnknown
    async with RpcChannel(address, _stub(service), timeout_s=options.timeout, security=security_of(options), service=service) as channel:
        return await when_reachable(lambda: channel.call(method, request, unanswered, force=options.force, check=False), options)


def _find(text: str) -> tuple[str, str]:
    service, _, method = text.rpartition("/")
    name = next((name for name, known in _SERVICES.items() if service in (name, known.full_name)), None)
    if name is None:
        raise InvalidArgument(f"{text} does not begin with one of {', '.join(f'{name}/' for name in _SERVICES)}")
    if method not in _methods(name):
        alike = next((known for known in _methods(name) if known.lower() == method.lower()), None)
        raise InvalidArgument(f"{name} has no RPC {method}{f'; did you mean {alike}?' if alike else ''} (kvcm call --list shows all)")
    return name, method


def _methods(service: str) -> dict[str, Any]:
    """RPC name -> descriptor of its request."""
    known = _SERVICES[service]
    module = _module(f"{known.module}_pb2")
    (found,) = module.DESCRIPTOR.services_by_name.values()
    return {method.name: getattr(module, method.input_type.name) for method in found.methods}


def _stub(service: str) -> Any:
    known = _SERVICES[service]
    return getattr(_module(f"{known.module}_pb2_grpc"), f"{known.full_name.rpartition('.')[2]}Stub")


def _module(name: str) -> Any:
    import importlib

    return importlib.import_module(f"kvcm.protocol.{name}")


def _text(argument: str) -> str:
    try:
        if argument == "-":
            return sys.stdin.read(_MAX_CHARS)
        if not argument.startswith("@"):
            return argument
        with Path(argument[1:]).open(encoding="utf-8") as file:
            return file.read(_MAX_CHARS)
    except OSError as error:
        raise InvalidArgument(f"{argument[1:]} cannot be read: {error.strerror or 'unknown reason'}") from None
    except UnicodeDecodeError:
        raise InvalidArgument("the request is not UTF-8 text") from None


def _request(kind: Any, text: str) -> Any:
    from kvcm.protocol.json_codec import JsonBodyError, json_to_message

    name = kind.DESCRIPTOR.name
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the request is not JSON: {error}") from None
    _check_names(kind.DESCRIPTOR, document, name, 0)
    try:
        return json_to_message(text.encode(), kind)
    except (JsonBodyError, UnicodeEncodeError) as error:
        raise InvalidArgument(f"the request cannot be read as {name}: {error}") from None


def _check_names(descriptor: Any, document: Any, where: str, depth: int) -> None:
    """Refuse fields that do not exist and enum names that are unknown; anything else is left to the codec."""
    if not isinstance(document, dict) or depth > _MAX_DEPTH:
        return
    fields = {name: field for field in descriptor.fields for name in (field.name, field.camelcase_name)}
    for name, value in document.items():
        field = fields.get(name)
        if field is None:
            raise InvalidArgument(f"{where} has no field {name!r}; it has {', '.join(field.name for field in descriptor.fields) or 'none'}")
        entry = field.message_type is not None and field.message_type.GetOptions().map_entry
        for item in value if isinstance(value, list) else [value]:
            if field.enum_type is not None and isinstance(item, str) and item not in field.enum_type.values_by_name:
                raise InvalidArgument(f"{where}.{name} has no value {item!r}; it has {', '.join(field.enum_type.values_by_name)}")
            if field.message_type is not None and not entry:
                _check_names(field.message_type, item, f"{where}.{name}", depth + 1)
