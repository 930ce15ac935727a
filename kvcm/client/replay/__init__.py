"""Replay a request trace through the real client: match, load and verify, write, with real bytes. Never imports the manager.

with ManagerClient.create(config, InitParams(RoleType.HYBRID, "kv")) as client:
    report = Replay(client, spec_name="kv", block_bytes=64).run(read_trace("conversation"))
assert report.mismatches == 0
"""

from __future__ import annotations

from kvcm.client.replay.audit import Audit, fetch_metrics, take_audit, usage_bytes
from kvcm.client.replay.content import block_content
from kvcm.client.replay.errors import AuditFailed, ReplayFailed, TraceError
from kvcm.client.replay.oracle import PrefixOracle
from kvcm.client.replay.report import STEPS, Latencies, ReplayReport
from kvcm.client.replay.runner import Replay
from kvcm.client.replay.trace import BLOCK_TOKENS, TraceRequest, read_trace
from kvcm.client.replay.verdict import Usage, problems

__all__ = [
    "BLOCK_TOKENS",
    "STEPS",
    "Audit",
    "AuditFailed",
    "Latencies",
    "PrefixOracle",
    "Replay",
    "ReplayFailed",
    "ReplayReport",
    "TraceError",
    "TraceRequest",
    "Usage",
    "block_content",
    "fetch_metrics",
    "problems",
    "read_trace",
    "take_audit",
    "usage_bytes",
]
