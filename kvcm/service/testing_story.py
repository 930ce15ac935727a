"""Replaying a recorded story of HTTP calls against a manager and comparing replies by their facts: status, fields, types, codes and stable values.

What cannot be the same twice is replaced by a mark on both sides: `<text>`, `<digits>`, `<session 1>` (numbered as they appear, so that later requests
can name them), `{root}` for the folder of the storages, `*` for the file name inside a location's URI. JSON inside texts is compared as JSON.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvcm.config.persisted import group_to_dict, storage_to_dict
from kvcm.config.startup import default_group, default_storage

_DEADLINE_S = 20.0
_MARKED = dict.fromkeys(("message", "tracer_result", "self_node_id", "leader_node_id", "config_snapshot", "user_data"), "<text>") | dict.fromkeys(
    ("elector_last_loop_time_ms", "self_leader_expiration_time", "info_updated_time", "timestamp"), "<digits>"
)
_ORDER = {"instance_info": "instance_id", "storage": "global_unique_name", "location_spec_groups": "name", "accounts": "user_name"}
_URI = re.compile(r"^(?P<start>[a-z0-9_]+://.*/)(?P<file>[^/?]+)(?P<query>\?.*)?$")


class Story:
    """`urls`: listener name -> base URL. `root`: the folder that `{root}` stands for."""

    def __init__(self, urls: Mapping[str, str], root: str) -> None:
        self._urls = urls
        self._root = root
        self._sessions: list[str] = []

    def ask(self, listener: str, method: str, path: str, sent: str | None) -> tuple[int, str, Any]:
        """(status, content type, facts of the reply: of JSON, else the text itself)."""
        where = urlsplit(self._urls[listener])
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_DEADLINE_S)
        try:
            connection.request(method, path, None if sent is None else self._filled(sent).encode())
            response = connection.getresponse()
            text, kind = response.read().decode(), response.getheader("content-type", "")
        finally:
            connection.close()
        try:
            return response.status, kind, self.facts(json.loads(text))
        except ValueError:
            return response.status, kind, text

    def facts(self, value: Any, name: str = "") -> Any:
        """The comparable form of a reply."""
        if isinstance(value, dict):
            return {key: self.facts(item, key) for key, item in value.items()}
        if isinstance(value, list):
            if name == "metrics":
                return _metrics(value)
            found = [self.facts(item, name) for item in value]
            return sorted(found, key=lambda item: str(item[_ORDER[name]])) if name in _ORDER else found
        if isinstance(value, str) and value:
            return self._text(name, value.replace(self._root, "{root}"))
        return value

    def _text(self, name: str, text: str) -> Any:
        if name in _MARKED:
            return _MARKED[name]
        if name == "request_id":
            return re.sub(r"_[0-9]{16}$", "_<digits>", text)
        if name == "write_session_id":
            if text not in self._sessions:
                self._sessions.append(text)
            return f"<session {self._sessions.index(text) + 1}>"
        if name in ("storage_configs", "metas"):
            return _without_ids(json.loads(text))
        if name == "uri" and (parts := _URI.match(text)):
            return f"{parts['start']}*{parts['query'] or ''}"
        return text

    def _filled(self, text: str) -> str:
        """Marks in a request, replaced by what they stand for."""
        text = text.replace("{root}", self._root)
        return re.sub(r"<session ([0-9]+)>", lambda mark: self._sessions[int(mark[1]) - 1] if int(mark[1]) <= len(self._sessions) else "gone", text)


def startup_file(root: str) -> str:
    """The path of a startup configuration with the built-in storage and group, the storage's root inside the folder `root`."""
    storage: dict[str, Any] = storage_to_dict(default_storage())
    storage["storage_spec"]["root_path"] = f"{root}/nfs/"
    path = Path(root, "startup.json")
    path.write_text(json.dumps({"storage_config": storage, "instance_group": group_to_dict(default_group())}), encoding="utf-8")
    return str(path)


def differing(expected: Any, found: Any, *, new: Collection[str] = (), partial: bool = False, path: str = "") -> list[str]:
    """Where two facts differ, one line each.

    `new`: fields that may be there although they are not expected. `partial`: what is expected are the first entries of each list. Status messages are
    texts, more is not asked of them.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [f"{path}.{key} is missing" for key in expected if key not in found]
        lines += [f"{path}.{key} is not expected" for key in found if key not in expected and key not in new]
        for key in expected.keys() & found.keys():
            lines += differing(expected[key], found[key], new=new, partial=partial, path=f"{path}.{key}")
        return lines
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) < len(expected) or (len(found) > len(expected) and not partial):
            return [f"{path} has {len(found)} entries instead of {len(expected)}"]
        return [line for at, pair in enumerate(zip(expected, found, strict=False)) for line in differing(*pair, new=new, partial=partial, path=f"{path}[{at}]")]
    if type(expected) is type(found) and (expected == found or path.endswith(".status.message")):
        return []
    return [f"{path} is {found!r} instead of {expected!r}"]


def _metrics(series: list[Any]) -> dict[str, Any]:
    """Series differ from server to server; their form does not."""
    return {
        "some": bool(series),
        "fields": sorted({key for item in series for key in item}),
        "kinds": sorted({key for item in series for key in item["metric_value"]}),
    }


def _without_ids(value: Any) -> Any:
    return value | {"id": "<id>"} if isinstance(value, dict) and "id" in value else value
