"""A small DNS server for the cluster, run as a program of its own: dns.py ADDRESS API-SERVER PKI-FOLDER

It answers A questions for SERVICE.NAMESPACE.svc.cluster.local (the ClusterIP, or the ready endpoints of a headless Service) and for
HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local (the pods of a StatefulSet). Every other name does not exist: nothing is forwarded, and pods
have no names from outside. It follows Services and Endpoints by watch. Only the standard library: Debian has no DNS server for Kubernetes.
"""

from __future__ import annotations

import http.client
import json
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_ZONE = ".svc.cluster.local"
_NO_SUCH_NAME = 3
_TYPE_A, _TYPE_ANY = 1, 255
_TTL_S = 2
_WATCH_S = 300
_RETRY_S = 0.3
_MAX_MESSAGE = 4096

Key = tuple[str, str]
Lookup = Callable[[str], "list[str] | None"]


class Names:
    """What the API server says about Services and Endpoints, by (namespace, name)."""

    def __init__(self) -> None:
        self.services: dict[Key, dict[str, Any]] = {}
        self.endpoints: dict[Key, dict[str, Any]] = {}

    def addresses(self, name: str) -> list[str] | None:
        """None: there is no such name. An empty list: there is, and nobody is ready behind it."""
        labels = name.rstrip(".").removesuffix(_ZONE).split(".") if name.rstrip(".").endswith(_ZONE) else []
        if len(labels) not in (2, 3):
            return None
        host = labels[0] if len(labels) == 3 else None
        key = (labels[-1], labels[-2])
        service = self.services.get(key)
        if service is None:
            return None
        cluster_ip = service["spec"].get("clusterIP")
        if cluster_ip and cluster_ip != "None":
            return [cluster_ip] if host is None else None
        found = [address["ip"] for address in self._behind(service, key) if host is None or address.get("hostname") == host]
        return None if host is not None and not found else found

    def _behind(self, service: dict[str, Any], key: Key) -> Iterable[dict[str, Any]]:
        for subset in self.endpoints.get(key, {}).get("subsets") or []:
            yield from subset.get("addresses") or []
            if service["spec"].get("publishNotReadyAddresses"):
                yield from subset.get("notReadyAddresses") or []


def answer(message: bytes, lookup: Lookup) -> bytes:
    """The answer to one question in DNS wire format (RFC 1035). ValueError or IndexError if it is not a question."""
    labels: list[str] = []
    at = 12
    while message[at]:
        end = at + 1 + message[at]
        labels.append(message[at + 1 : end].decode("ascii", "replace").lower())
        at = end
    question = message[12 : at + 5]
    if len(question) != at - 7:
        raise ValueError("the question is cut off")
    (kind,) = struct.unpack(">H", message[at + 1 : at + 3])
    found = lookup(".".join(labels))
    code = _NO_SUCH_NAME if found is None else 0
    shown = found or [] if kind in (_TYPE_A, _TYPE_ANY) else []
    header = struct.pack(">HHHHH", 0x8580 | code, 1, len(shown), 0, 0)
    records = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", _TYPE_A, 1, _TTL_S, 4) + socket.inet_aton(ip) for ip in shown)
    return message[:2] + header + question + records


class Follower:
    """Keeps one store equal to what the API server has: a list, then a watch, and again when the watch ends."""

    def __init__(self, server: str, pki: Path) -> None:
        self._address = urlsplit(server)
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))

    def follow(self, kind: str, store: dict[Key, dict[str, Any]]) -> None:
        while True:
            try:
                self._once(kind, store)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                sys.stderr.write(f"{kind}: {error}; trying again\n")
            time.sleep(_RETRY_S)

    def _once(self, kind: str, store: dict[Key, dict[str, Any]]) -> None:
        listed = json.loads(self._open(f"/api/v1/{kind}").read())
        fresh = {_key(item): item for item in listed["items"]}
        for gone in store.keys() - fresh.keys():
            store.pop(gone, None)
        store.update(fresh)
        version = listed["metadata"]["resourceVersion"]
        for line in self._open(f"/api/v1/{kind}?watch=1&resourceVersion={version}&timeoutSeconds={_WATCH_S}"):
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            if event["type"] == "DELETED":
                store.pop(_key(event["object"]), None)
            else:
                store[_key(event["object"])] = event["object"]

    def _open(self, path: str) -> http.client.HTTPResponse:
        host, port = self._address.hostname or "", self._address.port
        connection = http.client.HTTPSConnection(host, port, context=self._context, timeout=_WATCH_S + 20)
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise OSError(f"the API server answered {response.status}")
        return response


def _key(item: dict[str, Any]) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _serve(address: str, lookup: Lookup) -> None:
    class Datagram(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, reply = self.request
            try:
                reply.sendto(answer(data, lookup), self.client_address)
            except (ValueError, IndexError, struct.error):
                pass  # not a question; silence is what such a sender gets

    class Stream(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(5)
            try:
                (size,) = struct.unpack(">H", self.request.recv(2, socket.MSG_WAITALL))
                said = answer(self.request.recv(min(size, _MAX_MESSAGE), socket.MSG_WAITALL), lookup)
                self.request.sendall(struct.pack(">H", len(said)) + said)
            except (OSError, ValueError, IndexError, struct.error):
                pass

    socketserver.ThreadingTCPServer.daemon_threads = True
    streams = socketserver.ThreadingTCPServer((address, 53), Stream)
    threading.Thread(target=streams.serve_forever, daemon=True).start()
    socketserver.UDPServer((address, 53), Datagram).serve_forever()


def main() -> None:
    address, server, pki = sys.argv[1:4]
    names, follower = Names(), Follower(server, Path(pki))
    for kind, store in (("services", names.services), ("endpoints", names.endpoints)):
        threading.Thread(target=follower.follow, args=(kind, store), daemon=True).start()
    _serve(address, names.addresses)


if __name__ == "__main__":
    main()
