"""The certificates and kubeconfig files of one cluster, by the program openssl (version 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.settings import API_SERVICE_IP, CLUSTER_DOMAIN

_DAYS = "365"
_TIMEOUT_S = 60.0
_CONFIG = "[req]\ndistinguished_name = none\n[none]\n"
_KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{{name: bed, cluster: {{server: "{server}", certificate-authority: {pki}/ca.crt}}}}]
users: [{{name: {user}, user: {{client-certificate: {pki}/{user}.crt, client-key: {pki}/{user}.key}}}}]
contexts: [{{name: bed, context: {{cluster: bed, user: {user}}}}}]
current-context: bed
"""
COMPONENTS = ("kube-controller-manager", "kube-scheduler", "kube-proxy")


class Pki:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config = folder / "openssl.cnf"
        self._config.write_text(_CONFIG, encoding="utf-8")

    def crt(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def make_control(self, addresses: Sequence[str]) -> None:
        """Everything the control plane needs; `addresses` are where the API server will listen."""
        for authority in ("ca", "front-proxy-ca"):
            self.authority(authority)
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]
        alternatives = [f"IP:{address}" for address in (*addresses, API_SERVICE_IP)] + [f"DNS:{name}" for name in names]
        self.issue("apiserver", "/CN=kube-apiserver", alternatives=alternatives)
        self.issue("apiserver-kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client")
        self.issue("front-proxy-client", "/CN=front-proxy-client", authority="front-proxy-ca")
        self.issue("admin", "/O=system:masters/CN=admin")
        for component in COMPONENTS:
            self.issue(component, f"/CN=system:{component}")
        make_key: list[str | Path] = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", self.key("sa")]
        run(make_key, timeout=_TIMEOUT_S)
        run(["openssl", "pkey", "-in", self.key("sa"), "-pubout", "-out", self.folder / "sa.pub"], timeout=_TIMEOUT_S)

    def authority(self, name: str) -> None:
        """NAME.key and NAME.crt, which sign others."""
        self._issue(name, f"/CN={name}", None, ["keyUsage=critical,keyCertSign,digitalSignature,cRLSign"], is_authority=True)

    def issue(self, name: str, subject: str, *, authority: str = "ca", alternatives: Sequence[str] = ()) -> None:
        """NAME.key and NAME.crt, good for a server and for a client."""
        extensions = ["keyUsage=critical,digitalSignature,keyEncipherment", "extendedKeyUsage=serverAuth,clientAuth"]
        if alternatives:
            extensions.append("subjectAltName=" + ",".join(alternatives))
        self._issue(name, subject, authority, extensions, is_authority=False)

    def kubeconfig(self, user: str, server: str) -> Path:
        """A file that lets `user` talk to `server`; the certificate must exist."""
        path = self.folder / f"{user}.kubeconfig"
        path.write_text(_KUBECONFIG.format(server=server, pki=self.folder, user=user), encoding="utf-8")
        path.chmod(0o600)
        return path

    def _issue(self, name: str, subject: str, authority: str | None, extensions: Sequence[str], *, is_authority: bool) -> None:
        argv: list[str | Path] = ["openssl", "req", "-x509", "-config", self._config, "-days", _DAYS, "-subj", subject, "-noenc"]
        argv += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", self.key(name), "-out", self.crt(name)]
        if authority is not None:
            argv += ["-CA", self.crt(authority), "-CAkey", self.key(authority)]
        for extension in (f"basicConstraints=critical,CA:{'TRUE' if is_authority else 'FALSE'}", *extensions):
            argv += ["-addext", extension]
        run(argv, timeout=_TIMEOUT_S)
        self.key(name).chmod(0o600)
