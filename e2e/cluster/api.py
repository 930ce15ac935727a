"""Ask the API server whether it is there: a few GET requests with the admin certificate, cheaper than a kubectl process each."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT_S = 5.0


class Api:
    def __init__(self, server: str, pki: Path) -> None:
        self._address = urlsplit(server)
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))

    def get(self, path: str) -> tuple[int, bytes]:
        """(status, body); status 0 if no answer came."""
        connection = http.client.HTTPSConnection(self._address.hostname or "", self._address.port, context=self._context, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def ok(self, path: str) -> bool:
        return self.get(path)[0] == 200

    def json(self, path: str) -> dict[str, Any]:
        """The object, or {} if it is not there."""
        status, body = self.get(path)
        found = json.loads(body) if status == 200 else {}
        return found if isinstance(found, dict) else {}

    def node_ready(self, name: str) -> bool:
        conditions = self.json(f"/api/v1/nodes/{name}").get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def http_ok(address: str, port: int, path: str) -> bool:
    """Does a plain HTTP server answer 200?"""
    connection = http.client.HTTPConnection(address, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
