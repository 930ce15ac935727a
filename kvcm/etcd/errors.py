"""What can go wrong with etcd. Each class tells the caller a fact; no gRPC error crosses this border.

    StorageError
    ├── OutcomeUnknown       (common) a write was sent and nothing is known about it: read before repeating
    └── EtcdError            whatever was to be written has certainly not been written
        ├── EtcdUnavailable  no endpoint answered in time, or the cluster has no leader
        ├── Compacted        the history that was asked for is gone: read everything again
        └── EtcdRefused      etcd understood and said no; the same again will be refused again
            ├── AccessRefused    user, password, certificate or permission
            ├── RequestTooLarge  beyond what etcd takes in one request, or what one reply may hold
            └── LeaseGone        the lease has run out or was revoked

Messages are for administrators: they name endpoints and etcd's own reason, never keys, values, users or passwords.
"""

from __future__ import annotations

from kvcm.common.errors import StorageError


class EtcdError(StorageError):
    pass


class EtcdUnavailable(EtcdError):
    pass


class Compacted(EtcdError):
    """`revision`: the oldest one that can still be read; 0 when etcd did not tell."""

    retryable = False

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class EtcdRefused(EtcdError):
    retryable = False


class AccessRefused(EtcdRefused):
    pass


class RequestTooLarge(EtcdRefused):
    pass


class LeaseGone(EtcdRefused):
    pass
