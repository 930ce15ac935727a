"""Single requests to an API server with the admin's certificate, cheaper than a kubectl process each."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e.cluster.errors import BedError

_TIMEOUT_S = 5.0
_JSON = "application/json"


class Api:
    def __init__(self, server: str, pki: Path) -> None:
        self._address = urlsplit(server)
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))

    def get(self, path: str) -> tuple[int, bytes]:
        """(status, body); status 0 if no answer came."""
        connection = self._connection()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def send(self, method: str, path: str, document: object = None, *, content: str = _JSON, accept: str = _JSON) -> tuple[int, dict[str, Any]]:
        """(status, object) of one request as it is: no retry. BedError if no answer came, or one that is not an object."""
        connection = self._connection()
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body, {"Content-Type": content, "Accept": accept})
            response = connection.getresponse()
            found = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BedError(f"{method} {path} has brought no object: {error}") from error
        finally:
            connection.close()
        if not isinstance(found, dict):
            raise BedError(f"{method} {path} has brought no object")
        return response.status, found

    def ok(self, path: str) -> bool:
        return self.get(path)[0] == 200

    def json(self, path: str) -> dict[str, Any]:
        """The object, or {} if it is not there."""
        status, body = self.get(path)
        found = json.loads(body) if status == 200 else {}
        return found if isinstance(found, dict) else {}

    def _connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._address.hostname or "", self._address.port, context=self._context, timeout=_TIMEOUT_S)

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
