"""Where a manager that this machine started for itself is reached."""

from __future__ import annotations

from kvcm.config.settings_checks import DEBUG_PORT_OFFSET
from kvcm.service.cluster import Endpoint

LOCAL = "127.0.0.1"


class LocalAddresses:
    """For whoever starts a manager and keeps its `endpoint`, with the real ports."""

    endpoint: Endpoint

    @property
    def meta_address(self) -> str:
        """host:port of the metadata gRPC service."""
        return f"{LOCAL}:{self.endpoint.meta_rpc_port}"

    @property
    def admin_address(self) -> str:
        """host:port of the admin gRPC service."""
        return f"{LOCAL}:{self.endpoint.admin_rpc_port}"

    @property
    def http_url(self) -> str:
        return f"http://{LOCAL}:{self.endpoint.meta_http_port}"

    @property
    def admin_http_url(self) -> str:
        return f"http://{LOCAL}:{self.endpoint.admin_http_port}"

    @property
    def debug_http_url(self) -> str:
        """Served only with `kvcm.service.enable_debug_service=true`."""
        return f"http://{LOCAL}:{self.endpoint.meta_http_port + DEBUG_PORT_OFFSET}"
