"""Run the CRD server (crd_server.py) alone with an etcd of its own, for tests of the rules in CRDs.

It asks no other API server for anything: whoever shows the admin's certificate may do everything, others nothing, and the parts that would look for
namespaces, webhooks or policies are off. So a namespace need not exist. kubectl cannot talk to it, because it lists no groups: requests are sent
as they are. Its run folder lies beside the cluster's, so both can be up at once. Danger: one informer in it looks for Services, which nobody
serves here, so that one check of readiness is left out.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from e2e.cluster import clients, crd_server, debian
from e2e.cluster.api import Api, http_ok
from e2e.cluster.cache import Cache, key_of
from e2e.cluster.control import etcd_words
from e2e.cluster.down import down
from e2e.cluster.errors import BedError
from e2e.cluster.journal import Journal, prepare_run_folder
from e2e.cluster.pki import Pki
from e2e.cluster.process import Starter, free_ports
from e2e.cluster.settings import Settings
from e2e.cluster.waiting import eventually

_LOOPBACK = "127.0.0.1"
_ETCD_WAIT_S = 60.0
_SERVER_WAIT_S = 60.0
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_READY = "/readyz?exclude=informer-sync"
_NO_PLUGINS = (
    "NamespaceLifecycle",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionWebhook",
    "MutatingAdmissionPolicy",
    "ValidatingAdmissionPolicy",
)
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the server says to a request that writes. `body` is the object as it is now, or the Status that says why not."""

    status: int
    body: Json

    @property
    def accepted(self) -> bool:
        return self.status in (200, 201)

    @property
    def causes(self) -> list[tuple[str, str]]:
        """Field and sentence of each reason, as in ("spec", "Invalid value: set exactly one of ..."); none for a body that it could not read."""
        details = self.body.get("details") or {}
        return [(cause.get("field", ""), cause.get("message", "")) for cause in details.get("causes", ())]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


@dataclass(frozen=True, slots=True)
class CelServer:
    """A CRD server that answers. `version` is as in v1.36.4."""

    api: Api
    version: str

    def install(self, crd: Json) -> Json:
        """Create a CRD and wait until it can be used; returns it with its conditions. BedError with the server's words if it is refused."""
        name = crd["metadata"]["name"]
        status, body = self.api.send("POST", f"{_CRDS}?fieldValidation=Strict", crd)
        if status != 201:
            raise BedError(f"the server refuses the CRD {name}: {body.get('message')}")
        return eventually(lambda: self._established(crd), f"the CRD {name} is established and its resources answer")

    def _established(self, crd: Json) -> Json:
        """Empty as long as it is not."""
        found = self.api.json(f"{_CRDS}/{crd['metadata']['name']}")
        conditions = {condition["type"]: condition["status"] for condition in (found.get("status") or {}).get("conditions") or ()}
        place = f"/apis/{crd['spec']['group']}/{crd['spec']['versions'][0]['name']}/{crd['spec']['names']['plural']}"
        return found if conditions.get("Established") == "True" and self.api.ok(place) else {}

    def create(self, plural: str, document: Json, *, dry_run: bool = False, strict: bool = True) -> Verdict:
        """In the namespace that the document names, else `default`. Unknown fields are errors with `strict`, else the server drops them."""
        return Verdict(*self.api.send("POST", _path(plural, document) + _options(dry_run=dry_run, strict=strict), document))

    def replace(self, plural: str, document: Json, *, dry_run: bool = False, part: str = "") -> Verdict:
        """Write over the object of this name. `part` is "/status" or "/scale" for a subresource."""
        path = f"{_path(plural, document)}/{document['metadata']['name']}{part}"
        return Verdict(*self.api.send("PUT", path + _options(dry_run=dry_run, strict=True), document))

    def delete(self, plural: str, document: Json) -> None:
        """It may be gone already."""
        self.api.send("DELETE", f"{_path(plural, document)}/{document['metadata']['name']}")

    def table(self, plural: str, document: Json) -> Json:
        """The columns and rows that `kubectl get` prints for this object."""
        status, body = self.api.send("GET", f"{_path(plural, document)}/{document['metadata']['name']}", accept=_TABLE)
        if status != 200:
            raise BedError(f"no table for {plural}: {body.get('message')}")
        return body


def _path(plural: str, document: Json) -> str:
    namespace = document.get("metadata", {}).get("namespace", "default")
    return f"/apis/{document['apiVersion']}/namespaces/{namespace}/{plural}"


def _options(*, dry_run: bool, strict: bool) -> str:
    return "?" + urlencode({"fieldValidation": "Strict" if strict else "Ignore", **({"dryRun": "All"} if dry_run else {})})


def run_folder(settings: Settings) -> Path:
    return settings.run.with_name(f"{settings.run.name}-cel")


def build(cache: Cache) -> tuple[Path, Path]:
    """Have the CRD server and etcd in the cache; returns the programs. BedError if they cannot be made."""
    server = cache.obtain(crd_server.NAME, crd_server.key(), crd_server.make) / crd_server.PROGRAM
    return server, cache.obtain(clients.ETCD_NAME, clients.etcd_key(), clients.make_etcd) / "etcd"


@contextmanager
def cel_server_of(settings: Settings, cache: Cache, programs: tuple[Path, Path]) -> Iterator[CelServer]:
    """Start it, for the life of this process at most, and end it afterwards. BedError if it does not start, or if another process uses one."""
    folder = run_folder(settings)
    debian.need_tools({"openssl": "openssl"})
    prepare_run_folder(folder)
    with _alone(cache, folder):
        down(folder, purge=True)  # the lock was free, so whoever started what may be left here has ended
        prepare_run_folder(folder)
        starter = Starter(Journal(folder))
        try:
            yield _start(starter, *programs)
        finally:
            down(folder, purge=False)
            starter.reap()


def clear_left_over(settings: Settings, cache: Cache, *, purge: bool) -> list[str]:
    """End the server of a test run that was killed. One that is in use stays."""
    folder = run_folder(settings)
    if not folder.is_dir():
        return []
    try:
        with _alone(cache, folder):
            return down(folder, purge=purge)
    except BedError:
        return []


@contextmanager
def _alone(cache: Cache, folder: Path) -> Iterator[None]:
    """The kernel gives the lock back when its holder ends, however it ends. Danger: children must not inherit it, and Python sees to that."""
    with (cache.root / f"up-{key_of(str(folder))}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BedError(f"another test run uses the CRD server in {folder}; set KVCM_E2E_RUN to another place") from None
        yield


def _start(starter: Starter, program: Path, etcd: Path) -> CelServer:
    folder = starter.journal.run
    pki = Pki(folder / "pki")
    etcd_port, peer_port, port = free_ports(_LOOPBACK, 3, 21000 + os.getpid() * 7 % 7000)
    url = f"https://{_LOOPBACK}:{port}"
    pki.authority("ca")
    pki.issue("apiserver", "/CN=crd-server", alternatives=[f"IP:{_LOOPBACK}"])
    pki.issue("admin", "/O=system:masters/CN=admin")
    myself = pki.kubeconfig("admin", url)  # it wants to know a cluster; it is never asked for anything that matters
    starter.start("etcd", etcd_words(etcd, folder / "etcd", etcd_port, peer_port))
    starter.wait("etcd", _ETCD_WAIT_S, lambda: http_ok(_LOOPBACK, etcd_port, "/health"), "etcd is healthy")
    words: list[str | Path] = [
        program,
        f"--etcd-servers=http://{_LOOPBACK}:{etcd_port}",
        f"--bind-address={_LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={pki.crt('apiserver')}",
        f"--tls-private-key-file={pki.key('apiserver')}",
        f"--client-ca-file={pki.crt('ca')}",
        f"--kubeconfig={myself}",
        f"--authentication-kubeconfig={myself}",
        f"--authorization-kubeconfig={myself}",
        "--authentication-skip-lookup=true",
        f"--disable-admission-plugins={','.join(_NO_PLUGINS)}",
        "--enable-priority-and-fairness=false",
    ]
    starter.start(crd_server.NAME, words)
    api = Api(url, pki.folder)
    starter.wait(crd_server.NAME, _SERVER_WAIT_S, lambda: api.ok(_READY), "the CRD server is ready")
    return CelServer(api, str(api.json("/version").get("gitVersion", "")))
