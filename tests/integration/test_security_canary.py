"""A canary in every place that holds a secret, and a look at everything that a manager says: no canary may come out, in clear or encoded."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import secrets
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvcm.common.errors import NotReady
from kvcm.config.settings_load import load_settings
from kvcm.protocol import admin_service_pb2 as admin
from kvcm.protocol import debug_service_pb2 as debug
from kvcm.protocol import meta_service_pb2 as meta
from kvcm.service.testing import ManagerProcess
from kvcm.service.tls.testing import Authority

pytestmark = pytest.mark.integration

SERVICES = {"meta": (meta, "MetaService"), "admin": (admin, "AdminService"), "debug": (debug, "DebugService")}


def canary(place: str) -> str:
    return f"canary-{place}-{secrets.token_hex(16)}"


def forms(secret: str) -> set[bytes]:
    """The secret, and what every base64 of a text with the secret in it has in common; hexadecimal; the middle part alone."""
    raw = secret.encode()
    found = {raw, raw[8:-8], raw.hex().encode()}
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + raw)
        found |= {encoded[4:-4], encoded[4:-4].replace(b"+", b"-").replace(b"/", b"_")}
    return found


def leaks(outputs: dict[str, bytes], hidden: Iterable[str]) -> list[str]:
    return [f"{secret[:16]} in {name}" for secret in hidden for form in forms(secret) for name, content in outputs.items() if form in content]


def test_the_search_finds_what_it_looks_for() -> None:
    secret = canary("proof")
    for content in (secret.encode(), base64.b64encode(b"ann:" + secret.encode()), base64.b64encode(secret.encode()), secret.encode().hex().encode()):
        assert leaks({"page": b"before " + content + b" after"}, [secret])
    assert not leaks({"page": b"nothing"}, [secret])


class Caller:
    """Speaks to every port in every way, and keeps all that comes back."""

    def __init__(self, manager: ManagerProcess, authority: Authority) -> None:
        own = manager.endpoint
        ports = {"meta": own.meta_http_port, "admin": own.admin_http_port, "debug": own.meta_http_port + 3000}
        context = ssl.create_default_context(cadata=authority.cert.decode())
        self.connections = {plane: http.client.HTTPSConnection("localhost", port, timeout=20, context=context) for plane, port in ports.items()}
        self.channel: Any = grpc.secure_channel(f"localhost:{own.meta_rpc_port}", grpc.ssl_channel_credentials(authority.cert))
        self.said: list[str] = []
        self.codes: set[str] = set()

    def close(self) -> None:
        self.channel.close()
        for connection in self.connections.values():
            connection.close()

    def http(self, plane: str, path: str, body: object = None, header: str | None = None) -> None:
        headers = {} if header is None else {"Authorization": header}
        connection = self.connections[plane]
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        self.codes.add(str(reply.status))
        self.said += [str(reply.getheaders()), reply.read().decode("utf-8", "replace")]

    def rpc(self, plane: str, name: str, request: Any, header: str | None = None) -> None:
        module, service = SERVICES[plane]
        call = self.channel.unary_unary(f"/{module.DESCRIPTOR.package}.{service}/{name}", request_serializer=lambda message: message.SerializeToString())
        try:
            self.said.append(repr(call(request, timeout=10, metadata=None if header is None else (("authorization", header),))))
            self.codes.add("OK")
        except grpc.RpcError as error:
            found: Any = error
            self.codes.add(found.code().name)
            self.said += [repr(error), str(found.details()), str(found.trailing_metadata())]

    def everything(self, header: str | None, password: str) -> None:
        """Each RPC with nothing in its request and with what could be secret in it, and each page."""
        for plane, (module, service) in SERVICES.items():
            for method in module.DESCRIPTOR.services_by_name[service].methods:
                if method.name in ("LeaderDemote", "InjectFault"):
                    continue
                path = f"/api/{method.name[:1].lower()}{method.name[1:]}"
                self.http(plane, path, {}, header)
                self.rpc(plane, method.name, getattr(module, f"{method.name}Request")(), header)
            for path in ("/metrics", "/api/healthy", "/healthz", "/readyz", "/docs", "/openapi.json", f"/{password}"):
                self.http(plane, path, None, header)
        for name, more in (("AddAccount", {"password": password}), ("DeleteAccount", {})):
            self.http("admin", f"/api/{name[0].lower()}{name[1:]}", {"user_name": "ann", "role": "ROLE_USER"} | more, header)
            self.rpc("admin", name, getattr(admin, f"{name}Request")(user_name="ann", **more), header)
        self.rpc("admin", "AddAccount", admin.AddAccountRequest(user_name="a/b", password=password), header)
        self.http("admin", "/api/addAccount", {"user_name": ["ann"], "password": {"x": password}}, header)
        self.http("admin", "/api/addAccount", {"user_name": "bob", "password": password, "role": "ROLE_ADMIN"}, header)


def test_no_secret_comes_out_of_a_guarded_manager(tmp_path: Path) -> None:
    listed, filed, of_meta, of_account, wrong = (canary(place) for place in ("list", "file", "meta", "account", "wrong"))
    authority = Authority()
    pair = authority.issue()
    cert, key = pair.write(tmp_path, "server")
    (tmp_path / "tokens").write_text(f"{filed}\n")
    (tmp_path / "meta-tokens").write_text(of_meta)
    registry = tmp_path / "registry.json"
    config = "".join(
        f"{name}={value}\n"
        for name, value in {
            "kvcm.service.admin_auth_token": listed,
            "kvcm.service.admin_auth_token_file": tmp_path / "tokens",
            "kvcm.service.meta_auth_token_file": tmp_path / "meta-tokens",
            "kvcm.service.auth": "accounts",
            "kvcm.service.enable_debug_service": "true",
            "kvcm.service.credentials_reload_ms": "100",
            "kvcm.tls.cert_file": cert,
            "kvcm.tls.key_file": key,
            "kvcm.registry_storage.uri": f"local://{registry}",
            "kvcm.logger.log_level": "5",
            "kvcm.access_log.enabled": "true",
            "kvcm.access_log.with_payload": "true",
        }.items()
    )
    hidden = [listed, filed, of_meta, of_account, wrong, *pair.key.decode().splitlines()[1:-1]]
    with ManagerProcess(config=config) as manager:
        caller = Caller(manager, authority)
        login = base64.b64encode(f"bob:{of_account}".encode()).decode()
        offers = [None, f"Bearer {wrong}", wrong, f"Basic {base64.b64encode(f'bob:{wrong}'.encode()).decode()}"]
        offers += [f"Bearer {token}" for token in (listed, filed, of_meta)]
        for offer in offers:
            caller.everything(offer, of_account)
        caller.http("admin", "/api/listStorage", {}, f"Basic {login}")
        # Strangers at the ports are not worth a line outside the log.
        with Caller(manager, Authority()).channel as stranger, pytest.raises(grpc.RpcError):
            stranger.unary_unary("/a/b")(b"", timeout=10)
        # Reloads that fail are logged: a file of tokens that is none, a key that does not fit.
        (tmp_path / "tokens").write_text(f"{wrong} {wrong}")
        authority.issue().write(tmp_path, "server")
        (tmp_path / "server.key").write_bytes(pair.key)
        wait_for(caller, f"Bearer {listed}", 'kvcm_credentials_failing{name="tls"} 1', 'kvcm_credentials_failing{name="admin_tokens"} 1')
        process = Path(f"/proc/{manager.pid}")
        outputs = {"cmdline": (process / "cmdline").read_bytes(), "comm": (process / "comm").read_bytes(), "replies": "\n".join(caller.said).encode()}
        caller.close()
        assert caller.codes >= {"200", "401", "400", "OK", "UNAUTHENTICATED"}
        assert manager.stop() == 0
        outputs |= {"log": manager.log.encode(), "registry": registry.read_bytes()}
    assert b"credentials_kept" in outputs["log"]
    assert [line for line in outputs["log"].splitlines() if b" logger=" not in line and not line.startswith(b"kvcm is ready")] == []
    assert b"bob" in outputs["registry"]
    assert leaks(outputs, hidden) == []


def wait_for(caller: Caller, header: str, *lines: str) -> None:
    for _ in itertools.repeat(None, 200):
        caller.http("admin", "/metrics", None, header)
        if all(line in caller.said[-1] for line in lines):
            return
    raise AssertionError(f"the metrics never said {lines}")


@pytest.mark.parametrize("key", ["kvcm.registry_storage.uri", "kvcm.coordination.uri"])
def test_a_start_that_fails_shows_no_password_of_a_uri(key: str) -> None:
    secret = canary("redis")
    with (
        pytest.raises(NotReady) as caught,
        ManagerProcess({"kvcm.logger.log_level": "5"}, config=f"{key}=nonsense://ann:{secret}@127.0.0.1:1/?auth={secret}\n"),
    ):
        raise AssertionError("it has started")
    assert "ended with code" in str(caught.value)
    assert leaks({"log": str(caught.value).encode()}, [secret]) == []


def test_secrets_among_the_arguments_are_warned_about_and_never_repeated() -> None:
    secret = canary("argument")
    pairs = [f"kvcm.service.admin_auth_token={secret}", f"kvcm.coordination.uri=redis://:{secret}@host", "kvcm.registry_storage.uri=local:///tmp/x"]
    loaded = load_settings(None, pairs, {})
    warnings = [warning for warning in loaded.warnings if "--env" in warning]
    assert len(warnings) == 2
    assert "kvcm.service.admin_auth_token_file" in warnings[0]
    assert leaks({"warnings": "\n".join(loaded.warnings).encode(), "settings": repr(loaded.settings).encode()}, [secret]) == []
