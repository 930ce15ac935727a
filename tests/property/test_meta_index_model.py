"""MetaIndex against a dictionary: the same calls, the same answers, the same blocks, whatever fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcm.common.errors import OutcomeUnknown, StorageError
from kvcm.meta import block_table
from kvcm.meta.errors import KeyLimitReached, StateChanged
from kvcm.meta.index import MetaIndex, Outcome
from kvcm.meta.location import Block, Location, Status
from kvcm.meta.testing import Census, Fault, SuspendingBackend, published, written
from kvcm.meta.testing_moves import Move, Step, moved

pytestmark = pytest.mark.property

KEYS = st.integers(-2, 5)
STEPS = st.lists(st.tuples(KEYS, st.sampled_from(Move)), min_size=1, max_size=10)
_UNKNOWN = (Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LOST_HALF_WAY, Fault.BUG)


class Model:
    """What must be true, in the plainest words."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.blocks: dict[int, Block] = {}

    def call(self, steps: Sequence[Step], fresh: Sequence[Location], fault: Fault | None, refused: frozenset[int]) -> list[str]:
        """One word per position: done, same, full, moved (the plan failed) or store (the store failed)."""
        planned: dict[int, Block] = {}
        words: list[str] = []
        room = self.limit - len(self.blocks)
        for position, (key, move) in enumerate(steps):
            seen = planned.get(key, self.blocks.get(key, ()))
            if move is Move.FAIL:
                words.append("moved")
                continue
            wanted = moved(move, seen, lambda: fresh[position])  # noqa: B023 (called at once)
            if wanted is None or wanted == seen:
                words.append("same")
            elif wanted and not seen and key not in planned and room <= 0:
                words.append("full")
            else:
                room -= bool(wanted and not seen and key not in planned)
                planned[key] = wanted
                words.append("done")
        stored = self._stored(planned, fault, refused)
        failed = {key for key in planned if key not in stored and self._reported(planned[key], key, fault)}
        acted: set[int] = set()
        for position, (key, _) in enumerate(steps):
            if words[position] == "done" and key in failed:
                acted.add(key)
            if key in acted and words[position] in ("done", "same"):
                words[position] = "store"
        for key in stored:
            self.blocks.pop(key, None)
            if planned[key]:
                self.blocks[key] = planned[key]
        return words

    def _reported(self, wanted: Block, key: int, fault: Fault | None) -> bool:
        """Whether anybody notices that a block was not stored: not if it was as wanted already and the store has to be asked."""
        return not (fault in _UNKNOWN and wanted == self.blocks.get(key, ()))

    @staticmethod
    def _stored(planned: dict[int, Block], fault: Fault | None, refused: frozenset[int]) -> list[int]:
        if fault in (Fault.REFUSE, Fault.LOST_REQUEST):
            return []
        stored = [key for key in planned if key not in refused]
        return stored[::2] if fault is Fault.LOST_HALF_WAY else stored


def word(outcome: Outcome) -> str:
    if outcome.error is None:
        return "done" if outcome.changed else "same"
    assert not outcome.changed
    for kind, name in ((KeyLimitReached, "full"), (StateChanged, "moved"), (StorageError, "store")):
        if type(outcome.error) is kind:
            return name
    raise AssertionError(f"an unexpected error: {outcome.error!r}")


def _is_plain(block: Block) -> bool:
    return len(block) == 1 and block[0].status is Status.SERVING


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("kvcm.meta.index").disabled = True
        # Tiny runs, so that a handful of keys makes, joins, leaves and rewrites them.
        self.tiny = patch.multiple(block_table, MIN_RUN=2, MAX_RUN=3, _MAX_ASIDE=3)
        self.tiny.start()
        self.loop = asyncio.new_event_loop()
        self.backend = SuspendingBackend()
        self.number = 0
        self.fence = 1
        self.rows: list[list[int]] = []

    def teardown(self) -> None:
        self.loop.run_until_complete(self.index.close())
        self.loop.close()
        self.tiny.stop()
        logging.getLogger("kvcm.meta.index").disabled = False

    @initialize(limit=st.integers(0, 12), tier=st.integers(1, 6))
    def begin(self, limit: int, tier: int) -> None:
        self.tier = tier
        self.model = Model(limit)
        self.index = MetaIndex(self.backend, max_key_count=limit, tier_capacity=tier)

    def fresh(self, previous_key: int | None) -> Location:
        """A location like no other."""
        number = self.number
        self.number += 1
        size = 1 << number % 30 if number % 5 else 0
        return written(f"{number:x}", size=size, storage_slot=number % 3, create_time_us=number, previous_key=previous_key)

    def do(self, steps: Sequence[Step], fault: Fault | None = None, refused: frozenset[int] = frozenset(), at_once: bool = False) -> None:
        fresh: list[Location] = []
        for _ in steps:
            fresh.append(self.fresh(steps[len(fresh) - 1][0] if fresh else None))
        self.backend.failing_keys = set(refused)
        calls = len(self.backend.history)
        expected = self.model.call(steps, fresh, fault, refused)
        if fault is not None:
            self.backend.faults.append(fault)

        def plan(position: int, key: int, block: Block) -> Block | None:
            return moved(steps[position][1], block, lambda: fresh[position])

        def batch(seen: list[Block]) -> list[Block] | None:
            if any(move is Move.FAIL for _, move in steps):
                return None
            wanted = [plan(position, key, block) for position, ((key, _), block) in enumerate(zip(steps, seen, strict=True))]
            changed = [block for block, old in zip(wanted, seen, strict=True) if block is not None and block != old]
            return changed if len(changed) == len(seen) else None

        outcomes = self.loop.run_until_complete(self.index.mutate([key for key, _ in steps], plan, self.fence, batch if at_once else None))
        self.backend.faults.clear()
        assert [word(outcome) for outcome in outcomes] == expected
        assert len(self.backend.history) - calls <= 1

    @rule(steps=STEPS)
    def a_call(self, steps: list[Step]) -> None:
        self.do(steps)

    @rule(
        keys=st.lists(KEYS, min_size=1, max_size=8, unique=True),
        move=st.sampled_from([Move.BEGIN, Move.PROMOTE, Move.CONDEMN, Move.BURY]),
        fault=st.none() | st.sampled_from(Fault),
        at_once=st.booleans(),
    )
    def one_move_for_many(self, keys: list[int], move: Move, fault: Fault | None, at_once: bool) -> None:
        self.do([(key, move) for key in keys], fault, at_once=at_once)

    @rule(keys=st.lists(KEYS, min_size=2, max_size=8, unique=True), at_once=st.booleans())
    def a_row_is_written(self, keys: list[int], at_once: bool) -> None:
        self.do([(key, Move.BEGIN) for key in keys], at_once=at_once)
        self.do([(key, Move.PROMOTE) for key in keys], at_once=at_once)
        self.rows.append(keys)

    @rule(steps=STEPS, fault=st.sampled_from(Fault), refused=st.frozensets(KEYS, max_size=2))
    def a_call_that_goes_wrong(self, steps: list[Step], fault: Fault, refused: frozenset[int]) -> None:
        self.do(steps, fault, refused)

    @rule(steps=STEPS, refused=st.frozensets(KEYS, min_size=1, max_size=4))
    def a_call_with_refused_blocks(self, steps: list[Step], refused: frozenset[int]) -> None:
        self.do(steps, None, refused)

    @rule(key=KEYS, move=st.sampled_from([Move.BEGIN, Move.PROMOTE, Move.CONDEMN, Move.BURY]))
    def an_outcome_that_could_not_be_read_is_met_by_the_next_call(self, key: int, move: Move) -> None:
        old = self.model.blocks.get(key, ())
        landed = moved(move, old, lambda: self.fresh(None))
        if landed is None or landed == old or (not old and len(self.model.blocks) >= self.model.limit):
            return
        self.backend.failing_keys = set()
        self.backend.faults.extend([Fault.LOST_ANSWER, Fault.LOST_REQUEST])
        self.backend.failing_reads = 1
        (unread,) = self.loop.run_until_complete(self.index.mutate([key], lambda *_: landed, self.fence))
        assert isinstance(unread.error, OutcomeUnknown)
        assert (self.index.get(key), self.backend.store.get(key, ())) == (old, landed)
        other = (*old, self.fresh(None))
        (outcome,) = self.loop.run_until_complete(self.index.mutate([key], lambda *_: other, self.fence))
        assert word(outcome) == "moved"
        self.model.blocks.pop(key, None)
        if landed:
            self.model.blocks[key] = landed

    @rule(limit=st.integers(0, 8))
    def the_limit_changes(self, limit: int) -> None:
        self.index.max_key_count = self.model.limit = limit

    @rule()
    def a_restart(self) -> None:
        self.fence += 1
        self.index = MetaIndex(self.backend, max_key_count=self.model.limit, tier_capacity=self.tier)
        assert self.loop.run_until_complete(self.index.recover()) == len(self.model.blocks)

    @precondition(lambda self: bool(self.rows))
    @rule(data=st.data())
    def a_row_is_read(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows), "row")
        self.read([*row[data.draw(st.integers(0, len(row) - 1), "from") :], 77])

    @precondition(lambda self: bool(self.model.blocks))
    @rule(data=st.data())
    def any_blocks_are_read(self, data: st.DataObject) -> None:
        self.read(data.draw(st.permutations([*self.model.blocks, 77]), "keys"))

    def read(self, keys: list[int]) -> None:
        wires = [block[0].wire if _is_plain(block) else None for block in (self.model.blocks.get(key, ()) for key in keys)]
        hits = wires.index(None)
        out: list[bytes | bytearray] = []
        assert self.index.serving_run(keys, out) == hits
        assert b"".join(out) == b"".join(wire for wire in wires[:hits] if wire)

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        assert published(self.index) == self.model.blocks == self.backend.store
        assert len(self.model.blocks) == self.index.key_count
        assert Census.reported_by(self.index) == Census.of(self.model.blocks.values())
        # Each row from each of its members on, too: what a run holds of a block must go with the block.
        for row in self.rows[-3:]:
            for start in range(len(row)):
                self.read([*row[start:], 77])
        assert not any(_is_plain(self.model.blocks.get(key, ())) for key in self.index._table._aside), "a block is kept in two places"
        assert self.index._table._aside.keys() <= self.model.blocks.keys(), "a block that is gone is still kept"
        assert all(self.index.get(key) == self.model.blocks.get(key, ()) for key in range(-3, 8))


TestIndexAgainstModel = IndexMachine.TestCase
TestIndexAgainstModel.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)
