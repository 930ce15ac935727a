"""Request traces in the Mooncake format: one JSON object a line, blocks of 512 tokens, prefix-chained ids (source: kvcm/traces/NOTICE.md).

The last id of a request is normally a partial block, which no cache can hand out; the keys are the ids of the complete blocks (INV-T1).
A trace that breaks a rule is refused with the number of the line: a reader that guesses would replay a different trace. Records keep the
order of the file, equal timestamps too, and a timestamp that goes back is refused, never sorted (INV-T2).

Lines are read one at a time and have a longest length, so that memory does not grow with the file.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any

from kvcm.client.replay.errors import TraceError

BLOCK_TOKENS = 512
PACKAGED = {"conversation": "mooncake_conversation.jsonl.xz"}
"""Traces that come with the package, by name. A file of such a name in the current folder is meant by `./name`."""
MAX_LINE_BYTES = 4 << 20
_MAX_TOKENS = (1 << 31) - 1
_MIN_ID, _MAX_ID = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. `line` is its line in the file, from 1; `keys` are its complete blocks in order; lengths are tokens."""

    line: int
    timestamp_ms: int
    input_tokens: int
    output_tokens: int
    keys: tuple[int, ...]


def read_trace(source: str, *, limit: int | None = None) -> Iterator[TraceRequest]:
    """The requests of a packaged trace (`conversation`) or of a file ending in .jsonl, .jsonl.gz or .jsonl.xz, at most `limit` of them.

    Raises TraceError at the first line that breaks a rule, and for a file that cannot be opened or decompressed. Blank lines are skipped.
    """
    before = 0
    found = 0
    with _opened(source) as stream:
        for number, text in _lines(stream, source):
            if limit is not None and found >= limit:
                return
            request = _request(number, text)
            if request.timestamp_ms < before:
                raise _bad(number, f"its timestamp {request.timestamp_ms} is smaller than {before} before it; sort the trace by time first")
            before = request.timestamp_ms
            found += 1
            yield request


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    packaged = PACKAGED.get(source)
    name = packaged or source
    opener = _opener(name)
    try:
        raw: IO[bytes] = _file(packaged) if packaged else Path(source).open("rb")  # noqa: SIM115  # closed below, after decompression
    except OSError as error:
        known = ", ".join(PACKAGED)
        raise TraceError(f"the trace '{source}' cannot be opened: {error.strerror or 'unknown reason'} (packaged traces: {known})") from error
    except ValueError as error:
        raise TraceError("the name of the trace is not a file name") from error
    with raw, opener(raw) as stream:
        yield stream


def _file(packaged: str) -> IO[bytes]:
    return resources.files("kvcm").joinpath("traces", packaged).open("rb")


def _opener(name: str) -> Any:
    if name.endswith(".jsonl.xz"):
        return lzma.open
    if name.endswith(".jsonl.gz"):
        return gzip.open
    if name.endswith(".jsonl"):
        return _plain
    raise TraceError(f"the trace '{name}' must be a file ending in .jsonl, .jsonl.gz or .jsonl.xz, or a packaged trace: {', '.join(PACKAGED)}")


@contextmanager
def _plain(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    yield raw


def _lines(stream: IO[bytes], source: str) -> Iterator[tuple[int, bytes]]:
    number = 0
    while True:
        try:
            text = stream.readline(MAX_LINE_BYTES + 1)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"the trace '{source}' is damaged or cut off after line {number}", line=number) from error
        except OSError as error:
            raise TraceError(f"the trace '{source}' cannot be read after line {number}: {error.strerror or 'unknown reason'}", line=number) from error
        if not text:
            return
        number += 1
        if len(text) > MAX_LINE_BYTES:
            raise _bad(number, f"it is longer than {MAX_LINE_BYTES} bytes")
        if text.strip():
            yield number, text


def _request(number: int, text: bytes) -> TraceRequest:
    try:
        record = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise _bad(number, "it is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise _bad(number, "it is not valid JSON") from error
    if not isinstance(record, dict):
        raise _bad(number, "it is not a JSON object")
    tokens = _whole(record, "input_length", number, _MAX_TOKENS)
    return TraceRequest(
        line=number,
        timestamp_ms=_whole(record, "timestamp", number, _MAX_ID),
        input_tokens=tokens,
        output_tokens=_whole(record, "output_length", number, _MAX_TOKENS),
        keys=_keys(record, tokens, number),
    )


def _whole(record: dict[str, Any], name: str, number: int, most: int) -> int:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _bad(number, f"{name} must be a whole number from 0 to {most}")
    return value


def _keys(record: dict[str, Any], tokens: int, number: int) -> tuple[int, ...]:
    ids = record.get("hash_ids")
    if not isinstance(ids, list):
        raise _bad(number, "hash_ids must be a list of whole numbers")
    for value in ids:
        if isinstance(value, bool) or not isinstance(value, int) or not _MIN_ID <= value <= _MAX_ID:
            raise _bad(number, "every entry of hash_ids must be a whole number of at most 64 bits")
    complete, partial = divmod(tokens, BLOCK_TOKENS)
    most = complete + (partial > 0)
    if not complete <= len(ids) <= most:
        wanted = str(most) if most == complete else f"{complete} or {most}"
        raise _bad(number, f"input_length {tokens} needs {wanted} hash_ids in blocks of {BLOCK_TOKENS} tokens, but there are {len(ids)}")
    if len(set(ids)) != len(ids):
        raise _bad(number, "an id occurs twice in hash_ids")
    return tuple(ids[:complete])


def _bad(number: int, why: str) -> TraceError:
    return TraceError(f"line {number} of the trace: {why}", line=number)
