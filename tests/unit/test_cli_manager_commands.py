"""`kvcm delete|accounts|snapshot|admin|get` from the outside, who is calling, and waiting for a manager that does not listen yet."""

from __future__ import annotations

import getpass
import io
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcm.cli import main as cli
from kvcm.client import admin_client
from kvcm.client.admin_client import ManagerUnreachable
from kvcm.client.admin_testing import FakeAdmin
from kvcm.client.admin_types import AccountRole, ClusterInfo, MetricSample, NodeEndpoint
from kvcm.client.security import AccountLogin, BearerToken, ClientSecurity, TlsFiles
from kvcm.common.errors import NotLeader, NotReady, OutcomeUnknown
from kvcm.config.model import Instance, LocationSpecInfo, ModelDeployment

pytestmark = pytest.mark.unit

SAMPLES = str(Path(__file__).parents[2] / "manifests/samples")
CANARY = "c4n4ry-p4ssword"


class Manager(FakeAdmin):
    def __init__(self) -> None:
        super().__init__(instances=[Instance("i1", "demo", "demo", 16, (LocationSpecInfo("tp0", 1024),), ModelDeployment("m", "fp8"))])
        self.security = ClientSecurity()

    def connect(self, address: str, *, timeout_s: float, security: ClientSecurity) -> Manager:
        self.security = security
        return self


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    fake = Manager()
    monkeypatch.setattr(admin_client, "AdminClient", fake.connect)
    for name in ("MANAGER", "TOKEN_FILE", "USER", "USER_PASSWORD_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"):
        monkeypatch.delenv(f"KVCM_{name}", raising=False)
    return fake


def _stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_delete(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["apply", "-f", SAMPLES])
    manager.calls.clear()
    capsys.readouterr()
    assert cli.main(["delete", "group", "demo"]) == 0
    assert cli.main(["delete", "storage", "demo-nfs", "--force"]) == 0
    assert cli.main(["delete", "instance", "i1"]) == 0
    assert capsys.readouterr().out.splitlines() == ["group demo removed", "storage demo-nfs removed", "instance i1 removed"]
    assert manager.calls == ["remove_group demo", "remove_storage demo-nfs by force", "remove_instance i1"]
    assert cli.main(["delete", "instance", "i1"]) == 1
    assert capsys.readouterr().err == "error: instance i1 does not exist\n"


def test_a_removal_whose_answer_is_lost_is_not_repeated(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    manager.fail_next("remove_instance", OutcomeUnknown("no answer came"), carried_out=True)
    assert cli.main(["delete", "instance", "i1", "--wait", "5"]) == 1
    assert manager.calls == ["remove_instance i1"]
    assert capsys.readouterr().err == "error: no answer came\n"


def test_accounts_with_a_password_from_a_file(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "password"
    file.write_text(f"{CANARY}\n")
    assert cli.main(["accounts", "add", "ann", "--role", "admin", "--password-file", str(file)]) == 0
    _stdin(monkeypatch, f"{CANARY} of bob\n")
    assert cli.main(["accounts", "add", "bob", "--password-file", "-"]) == 0
    assert manager.accounts == {"ann": (CANARY, AccountRole.ADMIN), "bob": (f"{CANARY} of bob", AccountRole.USER)}
    assert cli.main(["get", "accounts"]) == 0
    assert cli.main(["accounts", "delete", "bob"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["account ann added", "account bob added", "NAME  ROLE", "ann   admin", "bob   user", "account bob deleted"]
    assert CANARY not in captured.out + captured.err


def test_a_password_is_asked_for_twice_on_a_terminal_only(manager: Manager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _stdin(monkeypatch, "")
    assert cli.main(["accounts", "add", "ann"]) == 1
    assert "--password-file" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    answers = ["one", "other", "same", "same"]
    monkeypatch.setattr(getpass, "getpass", lambda _prompt: answers.pop(0))
    assert cli.main(["accounts", "add", "ann"]) == 1
    assert "differ" in capsys.readouterr().err
    assert cli.main(["accounts", "add", "ann"]) == 0
    assert manager.accounts["ann"] == ("same", AccountRole.USER)


@pytest.mark.parametrize("content", [b"", b"\n", b"a\x00b", b"\xff\xfe", b"two\nlines", b"x" * 2000])
def test_passwords_that_cannot_be_meant_are_refused(manager: Manager, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (tmp_path / "password").write_bytes(content)
    assert cli.main(["accounts", "add", "ann", "--password-file", str(tmp_path / "password")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert manager.calls == []


def test_a_password_never_stands_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["accounts", "add", "ann", "--password", CANARY]) == 1
    assert cli.main(["accounts", "add", "--help"]) == 0
    assert "--password " not in capsys.readouterr().out


def test_snapshots(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    manager.snapshot = '{"groups": ["ü"]}'
    file = tmp_path / "snapshot.json"
    assert cli.main(["snapshot", "save", str(file)]) == 0
    assert file.read_text() == '{"groups": ["ü"]}\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    assert cli.main(["snapshot", "save", "-"]) == 0
    assert capsys.readouterr().out == '{"groups": ["ü"]}\n'
    manager.snapshot = ""
    assert cli.main(["snapshot", "load", str(file), "--force"]) == 0
    assert manager.snapshot == '{"groups": ["ü"]}'
    _stdin(monkeypatch, "{}")
    assert cli.main(["snapshot", "load", "-"]) == 0
    assert manager.calls == ["load_snapshot with force", "load_snapshot"]
    capsys.readouterr()
    assert cli.main(["snapshot", "load", str(tmp_path / "missing")]) == 1
    assert cli.main(["snapshot", "save", str(tmp_path / "no" / "folder")]) == 1
    (tmp_path / "latin").write_bytes(b"\xff")
    assert cli.main(["snapshot", "load", str(tmp_path / "latin")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert [line.rsplit(": ", 1)[-1] for line in errors[:2]] == ["No such file or directory"] * 2
    assert errors[2].endswith("is not UTF-8 text")


def test_admin(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["admin", "demote"]) == 0
    assert cli.main(["admin", "demote", "--stay-out", "5000"]) == 0
    assert cli.main(["admin", "campaign-delay"]) == 0
    assert cli.main(["admin", "campaign-delay", "0"]) == 0
    assert cli.main(["admin", "log-level", "DEBUG"]) == 0
    assert manager.calls == ["leader_demote", "set_campaign_delay 5000", "leader_demote", "set_campaign_delay 0", "set_log_level DEBUG"]
    assert capsys.readouterr().out.splitlines() == [
        "leadership given up",
        "leadership given up",
        "campaign delay: 5000 ms",
        "campaign delay: 0 ms",
        "log level: debug",
    ]
    manager.fail_next("leader_demote", NotLeader("this node does not lead"))
    assert cli.main(["admin", "demote"]) == 1
    assert manager.calls.count("leader_demote") == 3
    assert "this node does not lead; it knows of no node that does" in capsys.readouterr().err


def test_of_several_addresses_the_one_that_leads_is_demoted(manager: Manager) -> None:
    assert cli.main(["admin", "demote", "--stay-out", "5", "--manager", "one:1,two:2"]) == 0
    assert cli.main(["admin", "demote", "--manager", "static://one:1,two:2"]) == 0
    assert manager.calls == ["go_to_leader", "set_campaign_delay 5", "leader_demote", "go_to_leader", "leader_demote"]


def test_a_node_that_does_not_lead_says_where_the_leader_is(manager: Manager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def cluster_info() -> ClusterInfo:
        return ClusterInfo("node-1", "node-2", 0, NodeEndpoint("node-2", "::1", 1, 2, 6491, 4, ""), 7)

    monkeypatch.setattr(manager, "cluster_info", cluster_info)
    manager.fail_next("leader_demote", NotLeader("this node does not lead"))
    assert cli.main(["admin", "demote"]) == 1
    assert "this node does not lead; node-2 does, at [::1]:6491" in capsys.readouterr().err


def test_metrics(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    manager.samples = (MetricSample("b", 0.1234567890, {"y": "2", "x": "1"}), MetricSample("a", 7, {}))
    assert cli.main(["get", "metrics"]) == 0
    assert capsys.readouterr().out.splitlines() == ["NAME  VALUE     TAGS", "a     7         -", "b     0.123457  x=1,y=2"]
    assert cli.main(["get", "metrics", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[1] == {"name": "b", "value": 0.123456789, "tags": {"y": "2", "x": "1"}}


# -- who is calling --------------------------------------------------------------------------------------------------------------------------------


def test_identity_and_tls_from_options_and_the_environment(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, password = tmp_path / "token", tmp_path / "password"
    token.write_text("t0ken")
    password.write_text(CANARY)

    def sent(*options: str) -> Any:
        assert cli.main(["get", "cluster", *options]) == 0
        return manager.security.metadata()

    def tls() -> TlsFiles | None:
        return manager.security.tls

    assert sent() == ()
    assert tls() is None
    assert sent("--token-file", str(token)) == (("authorization", "Bearer t0ken"),)
    monkeypatch.setenv("KVCM_TOKEN_FILE", str(token))
    monkeypatch.setenv("KVCM_TLS_CA", "/ca.pem")
    assert sent() == (("authorization", "Bearer t0ken"),)
    assert tls() == TlsFiles("/ca.pem")
    # An account on the command line replaces the token of the environment.
    sent("--user", "ann", "--user-password-file", str(password))
    assert isinstance(manager.security.credential, AccountLogin)
    assert CANARY not in repr(manager.security)
    monkeypatch.setenv("KVCM_USER", "bob")
    sent("--token-file", str(token), "--tls-server-name", "kvcm", "--tls-cert", "/c", "--tls-key", "/k")
    assert isinstance(manager.security.credential, BearerToken)
    assert tls() == TlsFiles("/ca.pem", "/c", "/k", "kvcm")
    monkeypatch.delenv("KVCM_TLS_CA")
    sent("--tls", "--token-file", str(token))
    assert tls() == TlsFiles()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--user", "ann"], "needs its password file"),
        (["--tls-cert", "/c"], "needs its key file"),
        (["--user", "ann", "--user-password-file", "/p", "--token-file", "/t"], "not both"),
    ],
)
def test_half_an_identity_is_refused(manager: Manager, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str) -> None:
    assert cli.main(["get", "cluster", *options]) == 1
    assert sentence in capsys.readouterr().err


# -- waiting ---------------------------------------------------------------------------------------------------------------------------------------


def test_apply_waits_for_a_manager_that_does_not_listen_yet(manager: Manager, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        manager.fail_next("list_storages", ManagerUnreachable("nobody is there"))
    assert cli.main(["apply", "-f", SAMPLES]) == 2
    manager.fail_next("list_storages", ManagerUnreachable("nobody is there"))
    capsys.readouterr()
    assert cli.main(["apply", "-f", SAMPLES, "--wait", "0"]) == 1
    assert capsys.readouterr().err == "error: nobody is there\n"
    manager.fail_next("list_storages", ManagerUnreachable("nobody is there"))
    assert cli.main(["apply", "-f", SAMPLES, "--wait", "0.01"]) == 1
    assert capsys.readouterr().err == "error: the manager was not ready within 0.01 s: nobody is there\n"


def test_other_commands_do_not_wait_unless_asked(manager: Manager) -> None:
    manager.fail_next("list_accounts", ManagerUnreachable("nobody is there"))
    assert cli.main(["get", "accounts"]) == 1
    manager.fail_next("list_accounts", ManagerUnreachable("nobody is there"))
    assert cli.main(["get", "accounts", "--wait", "5"]) == 0
    # Starting is not "nobody listens": --timeout bounds it, as before.
    manager.fail_next("list_accounts", NotReady("starting"))
    assert cli.main(["get", "accounts"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["delete", "storage"],
        ["delete", "account", "ann"],
        ["accounts"],
        ["accounts", "add"],
        ["snapshot", "save"],
        ["admin", "log-level", "loud"],
        ["admin", "campaign-delay", "-1"],
        ["admin", "campaign-delay", "1e3"],
        ["apply", "-f", SAMPLES, "--wait", "-1"],
        ["apply", "-f", SAMPLES, "--wait", "soon"],
    ],
)
def test_errors_of_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 1
    assert "usage: kvcm" in capsys.readouterr().err
