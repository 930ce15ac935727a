"""What can go wrong in a replay.

InvalidArgument
└── TraceError      the trace cannot be read; `line` is where (0: the file as a whole)
KvcmError
├── ReplayFailed    a request could not be carried out; `line` is the request's line in the trace
└── AuditFailed     the state after the replay could not be read
"""

from __future__ import annotations

from kvcm.common.errors import ErrorCode, InvalidArgument, KvcmError


class TraceError(InvalidArgument):
    def __init__(self, message: str, *, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class ReplayFailed(KvcmError):
    code = ErrorCode.IO_ERROR
    fixer = "administrator"

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(message)
        self.line = line


class AuditFailed(KvcmError):
    code = ErrorCode.IO_ERROR
    fixer = "administrator"
