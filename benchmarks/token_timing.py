"""Does the time of a token check tell anything about the token? `python -m benchmarks.token_timing`

Welch's t-test, as in "dudect": two kinds of guesses are checked in random order, and the times of both kinds are compared. Guesses of one kind share all but
the last character with a real token, those of the other kind nothing. |t| above 4.5 would mean that the times differ for certain. For comparison the same is
done with a check that stops at the first difference, which must fail the test, or the test would prove nothing.

Only wrong guesses are of interest: whoever sends a right token is told so by the answer. Needs a quiet machine; a benchmark and not a test, because times are
nobody's promise.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from kvcm.service.auth.tokens import TokenSet

THRESHOLD = 4.5
TOKEN_CHARS = 512
TOKENS = 8
BATCH = 1000


def welch_t(left: Sequence[float], right: Sequence[float]) -> float:
    """Welch's t of two samples: the difference of their means in units of its standard error."""
    spread = math.sqrt(statistics.variance(left) / len(left) + statistics.variance(right) / len(right))
    return (statistics.fmean(left) - statistics.fmean(right)) / spread if spread else 0.0


def measure(check: Callable[[bytes], bool], near: bytes, far: bytes, rounds: int, rng: random.Random) -> float:
    """t of near against far guesses; the slowest tenth of all times is left out, it is the machine's and not the check's."""
    times: dict[bool, list[int]] = {True: [], False: []}
    clock = time.perf_counter_ns
    gc.disable()
    try:
        for batch in range(rounds // BATCH + 1):
            # The loop that measures does not know which kind a guess is: else its own branches are what is measured.
            kinds = [rng.random() < 0.5 for _ in range(BATCH)]
            guesses = [bytes(bytearray(near if kind else far)) for kind in kinds]
            took = []
            for guess in guesses:
                started = clock()
                check(guess)
                took.append(clock() - started)
            if batch:  # the first one warms up
                for kind, value in zip(kinds, took, strict=True):
                    times[kind].append(value)
    finally:
        gc.enable()
    limit = sorted(times[True] + times[False])[int(len(times[True] + times[False]) * 0.9)]
    kept = {kind: [float(value) for value in values if value <= limit] for kind, values in times.items()}
    return welch_t(kept[True], kept[False])


def stops_early(token: bytes) -> Callable[[bytes], bool]:
    """What not to do."""

    def check(guess: bytes) -> bool:
        if len(guess) != len(token):
            return False
        return all(ours == theirs for ours, theirs in zip(token, guess, strict=True))

    return check


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=200_000)
    rounds = options.parse_args().rounds
    rng = random.Random(7)
    tokens = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=TOKEN_CHARS)) for _ in range(TOKENS)]
    far = b"0" * TOKEN_CHARS
    cases = {
        "first token, last character wrong": (TokenSet(tokens).accepts, tokens[0][:-1] + b"0"),
        "last token, last character wrong": (TokenSet(tokens).accepts, tokens[-1][:-1] + b"0"),
        "middle token, half of it wrong": (TokenSet(tokens).accepts, tokens[4][: TOKEN_CHARS // 2] + b"0" * (TOKEN_CHARS // 2)),
        "a check that stops early (must differ)": (stops_early(tokens[0]), tokens[0][:-1] + b"0"),
    }
    failed = False
    print(f"{'guess, compared with one that shares nothing':48} {'|t|':>8}  verdict (limit {THRESHOLD})")
    for name, (check, near) in cases.items():
        t = abs(measure(check, near, far, rounds, rng))
        differs, wanted = t > THRESHOLD, "must differ" in name
        failed |= differs is not wanted
        print(f"{name:48} {t:8.2f}  {'differs' if differs else 'no difference'}{'' if differs is wanted else '  <- not as it should be'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
