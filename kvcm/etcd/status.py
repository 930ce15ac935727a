"""From a gRPC status of etcd to what it means for the request: was it carried out, may another endpoint be asked, who has to act.

Only what etcd itself said ("etcdserver: ..." or "auth: ...") about a refusal proves that a write did not happen. Anything else after sending (the connection
broke, the deadline passed, etcd timed out inside, its leader changed) leaves the outcome open.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import grpc
import grpc.aio

from kvcm.etcd.errors import AccessRefused, Compacted, EtcdError, EtcdRefused, LeaseGone, RequestTooLarge

NOT_ENABLED: Final = "authentication is not enabled"
_WRONG_PASSWORD: Final = "authentication failed"
_SAID_BY_ETCD: Final = re.compile(r"(?:etcdserver|auth): [ -~]{1,200}")
# etcd gives these back before it proposes anything.
_NOT_BEGUN: Final = ("etcdserver: no leader", "etcdserver: not capable", "etcdserver: too many requests")
# No token, one that is gone, or one from before users were changed.
_LOG_IN: Final = ("user name is empty", "invalid auth token", "revision of auth store is old")
_TOO_LARGE: Final = ("request is too large", "too many operations", "message larger than max")


class Verdict(Enum):
    # Certainly not carried out; another try may do better.
    NOT_BEGUN = "not begun"
    # The token is refused, and so was the request.
    LOG_IN = "log in"
    UNKNOWN = "unknown"
    REFUSED = "refused"


def details_of(error: grpc.aio.AioRpcError) -> str:
    return error.details() or ""


def judge(error: grpc.aio.AioRpcError) -> Verdict:
    code, details = error.code(), details_of(error)
    if any(text in details for text in _NOT_BEGUN):
        return Verdict.NOT_BEGUN
    if code is grpc.StatusCode.UNAUTHENTICATED or any(text in details for text in _LOG_IN):
        return Verdict.LOG_IN
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
        return Verdict.UNKNOWN
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and not _SAID_BY_ETCD.search(details):
        # The reply was too large for us, or the request for etcd: only the latter is a refusal, and a text of a library is no proof.
        return Verdict.UNKNOWN
    return Verdict.REFUSED


def refusal(error: grpc.aio.AioRpcError, what: str) -> EtcdError:
    """The error of ours for a status that was judged REFUSED or LOG_IN. `what`: the name of the request."""
    code, details = error.code(), details_of(error)
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return Compacted("etcd has compacted the history that was asked for.", 0)
    if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
        return LeaseGone("The lease is not known to etcd any more.")
    if _WRONG_PASSWORD in details:
        return AccessRefused("etcd does not accept the user and password.")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return AccessRefused(f"etcd does not allow {what} to this user: grant it a role with read and write on the prefix.")
    if any(text in details for text in _LOG_IN) or code is grpc.StatusCode.UNAUTHENTICATED:
        return AccessRefused(f"etcd does not allow {what} without a valid login: give user and password in the URI or in files.")
    if any(text in details for text in _TOO_LARGE):
        return RequestTooLarge(f"{what} is larger than etcd allows in one request; see its options --max-request-bytes and --max-txn-ops.")
    return EtcdRefused(f"etcd refused {what}: {said(error)}.")


def said(error: grpc.aio.AioRpcError) -> str:
    """etcd's own reason, or the name of the status; texts of libraries may hold anything and stay out."""
    found = _SAID_BY_ETCD.search(details_of(error))
    return found[0].partition(": ")[2] if found else error.code().name
