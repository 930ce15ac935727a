"""What can go wrong in the client, drawn first.

    KvcmError
    └── ClientError                    carries `client_code` (ER_ number), `retryable`, `fixer`, `unknown_outcome`
        ├── InvalidCall                3    the arguments contradict each other; nothing was sent or touched
        ├── InvalidRole                4    the role is unknown, or lacks what it needs to start
        ├── InvalidClientConfig        5    the client configuration breaks a rule
        │   ├── InvalidStorageConfig   6    the storage list (from the manager or given) is not usable
        │   ├── InvalidSdkConfig       7    `sdk_config` breaks a rule
        │   └── InvalidBackendConfig   8    one entry of `sdk_backend_configs` breaks a rule
        ├── ClientNotExists            15   this role does not have the asked half (metadata or transfer)
        ├── ConnectFailed              9    no manager could be reached
        ├── RpcFailed                  2    the call ended without a reply and changed nothing
        │   ├── AccessDenied           2    the token or certificate is missing or not accepted; nothing was done
        │   └── RpcOutcomeUnknown      2    a mutation ended without a reply and may have happened (`unknown_outcome`)
        ├── ServiceError                    the manager answered with an error; it changed nothing
        │   ├── NoStatus               50   the reply carries no status
        │   ├── ServiceInternal        51   also every code without an entry of its own
        │   │   ├── ServiceNotReady    51   wire code 4: starting or overloaded
        │   │   ├── ServiceFull        51   wire code 7: a quota or key limit is reached
        │   │   └── ServiceIo          51   wire code 20: a store failed
        │   ├── ServiceUnsupported     52
        │   ├── ServiceInvalidArgument 53
        │   ├── ServiceDuplicate       54
        │   ├── ServiceInstanceUnknown 55
        │   └── ServiceNotLeader       56
        └── TransferError                   moving bytes failed; `block_index` says which block
            ├── PoolFull               10   the queue is full, or the client is closed
            ├── TransferTimeout        100  not finished by the deadline
            ├── UnknownStorage         101  the URI names a store this client does not have
            ├── ReadFailed             104  also: the file is shorter than the block's place in it
            ├── WriteFailed            105
            ├── InvalidAddress         107  the URI does not lie inside its store, or cannot be read
            ├── InvalidLocalBuffers    108  the size of a buffer does not fit, or it cannot be written to
            └── ChecksumMismatch       118  the bytes are not those that were written

`client_code` is the number an upstream client would return (`ClientErrorCode`); `code` stays the wire-neutral code of `KvcmError`, so that
code that handles any `KvcmError` needs to know nothing about clients.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from kvcm.common.errors import ErrorCode, Fixer, KvcmError


class ClientErrorCode(IntEnum):
    """ER_ numbers of the upstream client SDK, so that a port of an existing connector can keep its tables."""

    OK = 0
    INVALID_STUB = 1
    INVALID_GRPCSTATUS = 2
    INVALID_PARAMS = 3
    INVALID_ROLETYPE = 4
    INVALID_CLIENT_CONFIG = 5
    INVALID_STORAGE_CONFIG = 6
    INVALID_SDKWRAPPER_CONFIG = 7
    INVALID_SDKBACKEND_CONFIG = 8
    CONNECT_FAIL = 9
    THREADPOOL_ERROR = 10
    SKIPINIT = 11
    METACLIENT_INIT_ERROR = 12
    TRANSFERCLIENT_INIT_ERROR = 13
    MANAGERCLIENT_INIT_ERROR = 14
    CLIENT_NOT_EXISTS = 15
    INIT_CHECK_BUFFER = 16
    SERVICE_NO_STATUS = 50
    SERVICE_INTERNAL_ERROR = 51
    SERVICE_UNSUPPORTED = 52
    SERVICE_INVALID_ARGUMENT = 53
    SERVICE_DUPLICATE_ENTITY = 54
    SERVICE_INSTANCE_NOT_EXIST = 55
    SERVICE_NOT_LEADER = 56
    TIMEOUT = 100
    GETSDK_ERROR = 101
    CREATESDK_ERROR = 102
    SDKINIT_ERROR = 103
    SDKREAD_ERROR = 104
    SDKWRITE_ERROR = 105
    SDKALLOC_ERROR = 106
    INVALID_ADDRESS = 107
    INVALID_LOCAL_BUFFERS = 108
    UNSUPPORTED_MEMORY_TYPE = 109
    UNCONSISTENT_MEMORY_TYPE = 110
    FILE_IO_ERROR = 111
    CUDAMEMCPY_ERROR = 112
    EXTRACT_SLICES_ERROR = 113
    CUDA_STREAM_CREATE_ERROR = 114
    CUDA_STREAM_SYNC_ERROR = 115
    CUDA_HOST_REGISTER_ERROR = 116
    CUDA_HOST_UNREGISTER_ERROR = 117
    CHECKSUM_MISMATCH = 118
    INLINE_HEADER_INVALID = 119


class ClientError(KvcmError):
    """Root of everything the client raises on purpose."""

    client_code: ClassVar[ClientErrorCode] = ClientErrorCode.INVALID_PARAMS
    # True: a mutation was sent and nothing is known about it. Read the state before repeating.
    unknown_outcome: ClassVar[bool] = False


class InvalidCall(ClientError):
    code = ErrorCode.INVALID_ARGUMENT
    client_code = ClientErrorCode.INVALID_PARAMS
    fixer = "caller"


class InvalidRole(ClientError):
    code = ErrorCode.INVALID_ARGUMENT
    client_code = ClientErrorCode.INVALID_ROLETYPE
    fixer = "caller"


class InvalidClientConfig(ClientError):
    code = ErrorCode.INVALID_ARGUMENT
    client_code = ClientErrorCode.INVALID_CLIENT_CONFIG
    fixer: ClassVar[Fixer] = "caller"


class InvalidStorageConfig(InvalidClientConfig):
    client_code = ClientErrorCode.INVALID_STORAGE_CONFIG
    fixer = "administrator"


class InvalidSdkConfig(InvalidClientConfig):
    client_code = ClientErrorCode.INVALID_SDKWRAPPER_CONFIG


class InvalidBackendConfig(InvalidClientConfig):
    client_code = ClientErrorCode.INVALID_SDKBACKEND_CONFIG


class ClientNotExists(ClientError):
    code = ErrorCode.UNSUPPORTED
    client_code = ClientErrorCode.CLIENT_NOT_EXISTS
    fixer = "caller"


class ConnectFailed(ClientError):
    code = ErrorCode.SERVICE_NOT_READY
    client_code = ClientErrorCode.CONNECT_FAIL
    retryable = True
    fixer = "administrator"


class RpcFailed(ClientError):
    """The call ended without a reply. `grpc_status` is the name of the status; `may_have_run`: the manager may have seen the call."""

    code = ErrorCode.IO_ERROR
    client_code = ClientErrorCode.INVALID_GRPCSTATUS
    retryable: ClassVar[bool] = True
    fixer = "administrator"

    def __init__(self, message: str, *, grpc_status: str = "UNKNOWN", may_have_run: bool = True) -> None:
        super().__init__(message)
        self.grpc_status = grpc_status
        self.may_have_run = may_have_run


class AccessDenied(RpcFailed):
    """The manager wants a token, or does not accept the one that was sent (or the account behind it may not do this)."""

    code = ErrorCode.INVALID_ARGUMENT
    retryable = False


class RpcOutcomeUnknown(RpcFailed):
    """A mutation was sent and nothing is known about it: look at the state before repeating it."""

    retryable = False
    unknown_outcome = True


class ServiceError(ClientError):
    """The manager answered with an error. `service_code` is the number it sent (0 when it sent none).

    `details`: what an error reply of ReportEvent or GetCacheMetaDetail tells beside the code, as the result of the call would.
    """

    client_code = ClientErrorCode.SERVICE_INTERNAL_ERROR

    def __init__(self, message: str, *, service_code: int = 0, request_id: str = "") -> None:
        super().__init__(message)
        self.service_code = service_code
        self.request_id = request_id
        self.details: object = None


class NoStatus(ServiceError):
    client_code = ClientErrorCode.SERVICE_NO_STATUS


class ServiceInternal(ServiceError):
    pass


class ServiceNotReady(ServiceInternal):
    code = ErrorCode.SERVICE_NOT_READY
    retryable = True


class ServiceFull(ServiceInternal):
    code = ErrorCode.REACH_MAX_ENTITY_CAPACITY
    retryable = True
    fixer = "administrator"


class ServiceIo(ServiceInternal):
    code = ErrorCode.IO_ERROR
    retryable = True
    fixer = "administrator"


class ServiceUnsupported(ServiceError):
    code = ErrorCode.UNSUPPORTED
    client_code = ClientErrorCode.SERVICE_UNSUPPORTED
    fixer = "caller"


class ServiceInvalidArgument(ServiceError):
    code = ErrorCode.INVALID_ARGUMENT
    client_code = ClientErrorCode.SERVICE_INVALID_ARGUMENT
    fixer = "caller"


class ServiceDuplicate(ServiceError):
    code = ErrorCode.DUPLICATE_ENTITY
    client_code = ClientErrorCode.SERVICE_DUPLICATE_ENTITY
    fixer = "caller"


class ServiceInstanceUnknown(ServiceError):
    code = ErrorCode.INSTANCE_NOT_EXIST
    client_code = ClientErrorCode.SERVICE_INSTANCE_NOT_EXIST
    fixer = "caller"


class ServiceNotLeader(ServiceError):
    code = ErrorCode.SERVER_NOT_LEADER
    client_code = ClientErrorCode.SERVICE_NOT_LEADER
    retryable = True
    fixer = "administrator"


_BY_SERVICE_CODE: dict[int, type[ServiceError]] = {
    ErrorCode.UNSUPPORTED: ServiceUnsupported,
    ErrorCode.SERVICE_NOT_READY: ServiceNotReady,
    ErrorCode.INVALID_ARGUMENT: ServiceInvalidArgument,
    ErrorCode.DUPLICATE_ENTITY: ServiceDuplicate,
    ErrorCode.REACH_MAX_ENTITY_CAPACITY: ServiceFull,
    ErrorCode.INSTANCE_NOT_EXIST: ServiceInstanceUnknown,
    ErrorCode.SERVER_NOT_LEADER: ServiceNotLeader,
    ErrorCode.IO_ERROR: ServiceIo,
}


def service_error(operation: str, service_code: int, text: str, request_id: str = "") -> ServiceError:
    """The error for a reply of `operation` whose status code is not OK; codes without an entry become `ServiceInternal`."""
    said = f": {text}" if text else f" (service code {service_code})"
    kind = NoStatus if service_code == 0 else _BY_SERVICE_CODE.get(service_code, ServiceInternal)
    return kind(f"the manager refused {operation}{said}", service_code=service_code, request_id=request_id)


class TransferError(ClientError):
    """Moving bytes failed. `block_index` is the position in the call's lists, None when the error concerns the whole call."""

    code = ErrorCode.IO_ERROR
    retryable = True
    fixer: ClassVar[Fixer] = "administrator"

    def __init__(self, message: str, *, block_index: int | None = None) -> None:
        super().__init__(message)
        self.block_index = block_index


class PoolFull(TransferError):
    code = ErrorCode.SERVICE_NOT_READY
    client_code = ClientErrorCode.THREADPOOL_ERROR
    fixer = "caller"


class TransferTimeout(TransferError):
    client_code = ClientErrorCode.TIMEOUT


class UnknownStorage(TransferError):
    code = ErrorCode.INVALID_ARGUMENT
    client_code = ClientErrorCode.GETSDK_ERROR
    retryable = False


class ReadFailed(TransferError):
    client_code = ClientErrorCode.SDKREAD_ERROR


class WriteFailed(TransferError):
    client_code = ClientErrorCode.SDKWRITE_ERROR


class InvalidAddress(TransferError):
    code = ErrorCode.INVALID_ARGUMENT
    client_code = ClientErrorCode.INVALID_ADDRESS
    retryable = False
    fixer = "caller"


class InvalidLocalBuffers(TransferError):
    code = ErrorCode.INVALID_ARGUMENT
    client_code = ClientErrorCode.INVALID_LOCAL_BUFFERS
    retryable = False
    fixer = "caller"


class ChecksumMismatch(TransferError):
    client_code = ClientErrorCode.CHECKSUM_MISMATCH
    retryable = False
