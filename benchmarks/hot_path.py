"""Server CPU per request of the hot RPCs, as ratios in one run against a peer handler in the same process (design D2, issue A).

    python -m benchmarks.hot_path [--blocks N] [--json FILE] [--with EXTRA,...]

`--with` measures what looking on costs: a second manager with these extras runs beside the plain one, the same requests go to both in turn, and the figure
is the ratio of the two. EXTRA: access_log, auth (a bearer token with each call), events; `all` is the first two, for which the target of at most
1.25 is meant: events write every key.

Targets: an all-hit prefix read of 256 and of 1024 blocks at most 1.6 times the peer that parses the same request and returns a constant reply of equal size;
of 1 block at most 1.15 times; a StartWrite+FinishWrite pair of 32 new blocks at most 4 times a read of 32 blocks. The runs of peer and manager alternate, so
that noise of the machine hits both; the figure is the median over the rounds. `working set` keys are read over and over; `whole index` picks from everything
that is loaded, so that most look-ups miss the processor's caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Measured, finish_request, load, machine, measured_manager, random_keys, read_request, start_request
from kvcm.protocol import meta_service_pb2 as meta

ROUNDS = 9
REQUESTS = 400
IN_FLIGHT = 8
WORKING_SET = 16_384
WITH_TARGET = 1.25
_ALL = ["access_log", "auth"]
_TOKEN = "benchmark-token-0123456789abcdef"
EXTRAS = {
    "access_log": ("kvcm.access_log.enabled=true",),
    "events": ('kvcm.event.event_publishers_configs={"log":{"enable":true}}',),
    "auth": (),  # a token file, which is made when the manager starts
}


@dataclass(frozen=True)
class Line:
    name: str
    peer_us: float
    manager_us: float
    ratio: float
    target: float | None


def cpu_per_request(manager: Measured, call: Any, requests: Sequence[bytes]) -> float:
    """Microseconds of server CPU per request with IN_FLIGHT requests under way."""
    before = manager.cpu_us()
    waiting: deque[Any] = deque()
    for request in requests:
        waiting.append(call.future(request, timeout=30))
        if len(waiting) >= IN_FLIGHT:
            waiting.popleft().result()
    for answer in waiting:
        answer.result()
    return (manager.cpu_us() - before) / len(requests)


def compare(name: str, manager: Measured, pick: Callable[[int], Sequence[int]], blocks: int, target: float | None) -> Line:
    read, peer = manager.method("GetCacheLocation"), manager.method("peer:Constant")
    reply = read(read_request(pick(blocks)), timeout=30)
    assert len(meta.GetCacheLocationResponse.FromString(reply).locations) == blocks, "the read must be all hits"
    manager.method("peer:Fix")(reply, timeout=30)
    pairs = []
    for _ in range(ROUNDS):
        requests = [read_request(pick(blocks)) for _ in range(REQUESTS)]
        pairs.append((cpu_per_request(manager, peer, requests), cpu_per_request(manager, read, requests)))
    ratio = statistics.median(real / constant for constant, real in pairs)
    return Line(name, statistics.median(p for p, _ in pairs), statistics.median(r for _, r in pairs), ratio, target)


def write_pair(manager: Measured, pick: Callable[[int], Sequence[int]]) -> Line:
    """A pair of 32 new blocks against a read of 32 blocks."""
    read = manager.method("GetCacheLocation")
    pairs = []
    for turn in range(ROUNDS):
        constant = cpu_per_request(manager, read, [read_request(pick(32)) for _ in range(REQUESTS)])
        pairs.append((constant, cpu_per_pair(manager, turn)))
    ratio = statistics.median(pair / constant for constant, pair in pairs)
    return Line("write pair, 32 new blocks / read of 32", statistics.median(p for p, _ in pairs), statistics.median(r for _, r in pairs), ratio, 4.0)


def cpu_per_pair(manager: Measured, turn: int) -> float:
    """Microseconds of server CPU per StartWrite and FinishWrite of 32 new blocks; another `turn`, other blocks."""
    start, finish = manager.method("StartWriteCache"), manager.method("FinishWriteCache")
    fresh = random_keys(32 * REQUESTS, seed=1_000 + turn)
    starts = [start_request(fresh[at : at + 32]) for at in range(0, len(fresh), 32)]
    before = manager.cpu_us()
    # Both calls of a pair are under way like the reads: IN_FLIGHT at a time.
    started: deque[Any] = deque()
    finished: deque[Any] = deque()
    for request in starts:
        started.append(start.future(request, timeout=30))
        if len(started) + len(finished) >= IN_FLIGHT:
            if finished:
                finished.popleft().result()
            finished.append(_finish(started.popleft(), finish))
    for answer in started:
        finished.append(_finish(answer, finish))
    for answer in finished:
        assert meta.CommonResponse.FromString(answer.result()).header.status.code == meta.OK
    return (manager.cpu_us() - before) / len(starts)


def side_by_side(plain: Measured, full: Measured, pick: Callable[[int], Sequence[int]]) -> list[Line]:
    """The same requests to both, in turn; `peer_us` is the plain manager."""
    lines = []
    for blocks in (1, 32, 256, 1024):
        pairs = []
        for _ in range(ROUNDS):
            requests = [read_request(pick(blocks)) for _ in range(REQUESTS)]
            pairs.append(tuple(cpu_per_request(manager, manager.method("GetCacheLocation"), requests) for manager in (plain, full)))
        lines.append(_compared(f"read {blocks} blocks, with / without", pairs))
    pairs = [(cpu_per_pair(plain, turn), cpu_per_pair(full, turn)) for turn in range(ROUNDS)]
    return [*lines, _compared("write pair of 32 blocks, with / without", pairs)]


def _compared(name: str, pairs: Sequence[tuple[float, ...]]) -> Line:
    ratio = statistics.median(full / plain for plain, full in pairs)
    return Line(name, statistics.median(p for p, _ in pairs), statistics.median(f for _, f in pairs), ratio, WITH_TARGET)


def measure_with(extras: Sequence[str], blocks: int) -> list[Line]:
    """A plain manager and one with `extras`, side by side."""
    keys = random_keys(blocks, seed=7)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="kvcm-bench-")))
        settings = [pair for extra in extras for pair in EXTRAS[extra]]
        metadata: tuple[tuple[str, str], ...] = ()
        if "auth" in extras:
            tokens = folder / "tokens"
            tokens.write_text(f"{_TOKEN}\n")
            tokens.chmod(0o600)
            settings.append(f"kvcm.service.meta_auth_token_file={tokens}")
            metadata = (("authorization", f"Bearer {_TOKEN}"),)
        plain = stack.enter_context(measured_manager())
        full = stack.enter_context(measured_manager(settings=settings, metadata=metadata, log=folder / "log"))
        for manager in (plain, full):
            load(manager, keys)
        return side_by_side(plain, full, picker(keys, min(WORKING_SET, len(keys)), 1))


def _finish(answer: Any, finish: Any) -> Any:
    """Take the answer of a start and send its finish."""
    reply = meta.StartWriteCacheResponse.FromString(answer.result())
    assert len(reply.locations) == 32, reply.header
    return finish.future(finish_request(reply.write_session_id, 32), timeout=30)


def picker(keys: Sequence[int], limit: int, seed: int) -> Callable[[int], Sequence[int]]:
    generator = Random(seed)
    return lambda blocks: keys[(at := generator.randrange(limit - blocks + 1)) : at + blocks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--blocks", type=int, default=200_000, help="blocks loaded before measuring (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--with", dest="extras", type=_extras, help="measure these extras instead, beside a manager without them: access_log, auth, events, all"
    )
    options = parser.parse_args()
    lines = measure_with(options.extras, options.blocks) if options.extras else measure_alone(options.blocks)
    print(f"{machine()}; {options.blocks} blocks loaded, {IN_FLIGHT} requests in flight, median of {ROUNDS} x {REQUESTS}")
    print(f"{'':<50}{'without us' if options.extras else 'peer us':>11}{'us':>9}{'ratio':>8}{'target':>8}")
    for line in lines:
        mark = "" if line.target is None else f"{line.target:>8.2f}{'' if line.ratio <= line.target else '  MISSED'}"
        print(f"{line.name:<50}{line.peer_us:>11.0f}{line.manager_us:>9.0f}{line.ratio:>8.2f}{mark}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "with": options.extras or [], "lines": [asdict(line) for line in lines]}, indent=1))


def _extras(text: str) -> list[str]:
    chosen = _ALL if text == "all" else text.split(",")
    unknown = [name for name in chosen if name not in EXTRAS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(EXTRAS)}, all")
    return chosen


def measure_alone(blocks: int) -> list[Line]:
    """The manager against the constant reply."""
    keys = random_keys(blocks, seed=7)
    lines = []
    with measured_manager() as manager:
        load(manager, keys)
        near = picker(keys, min(WORKING_SET, len(keys)), 1)
        far = picker(keys, len(keys), 2)
        for count, target in ((1, 1.15), (32, None), (256, 1.6), (1024, 1.6)):
            lines.append(compare(f"read {count} blocks, working set / constant reply", manager, near, count, target))
        for count in (256, 1024):
            lines.append(compare(f"read {count} blocks, whole index / constant reply", manager, far, count, None))
        lines.append(write_pair(manager, near))
    return lines


if __name__ == "__main__":
    main()
