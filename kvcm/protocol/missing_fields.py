"""The one form in which requests are told what they lack: `missing or invalid fields: {<Rpc or message>: {<field>}{<field>}}`.

Upstream's clients and tests look for field names inside this text (wire contract 4.1, 5.3), so its shape is part of the contract. Nested messages
nest: `{StorageConfig: {NfsStorageSpec: {root_path}}}`.
"""

from __future__ import annotations

from kvcm.common.errors import InvalidArgument


class MissingFields(InvalidArgument):
    """A request lacks fields or holds values outside their range; the message names all of them."""


def named(*pairs: tuple[str, bool]) -> str:
    """The names whose condition does not hold, each in braces; empty when all hold."""
    return "".join(f"{{{name}}}" for name, holds in pairs if not holds)


def inside(message: str, problems: str) -> str:
    """Problems of one message, or empty when there are none."""
    return f"{{{message}: {problems}}}" if problems else ""


def missing(problems: str) -> MissingFields:
    """The error that says them."""
    return MissingFields(f"missing or invalid fields: {problems}")


def refuse(problems: str) -> None:
    """Raise MissingFields unless there are no problems."""
    if problems:
        raise missing(problems)


def require_fields(rpc: str, **present: bool) -> None:
    """What a service asks of a request in one line: `require_fields("GetInstanceInfo", instance_id=bool(req.instance_id))`."""
    refuse(inside(rpc, named(*present.items())))
