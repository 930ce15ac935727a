"""Runs: sequences that were written together are read together, and never show a block that is not plainly SERVING."""

from __future__ import annotations

import pytest

from kvcm.meta.block_table import MIN_RUN, BlockTable, Change
from kvcm.meta.key_packing import FixedWidth, KeyPacking
from kvcm.meta.location import Location, condemn, promote
from kvcm.meta.runs import MAX_RUN, Run
from kvcm.meta.testing import written
from kvcm.protocol.key_packing import WirePacking

pytestmark = pytest.mark.unit

PACKINGS: list[KeyPacking] = [FixedWidth(), WirePacking()]
KEYS = [-5, 0, 1, 127, 128, 1 << 62, -(1 << 63), 300, 7, 9, -1, 12]


def serving(key: int, previous: int | None = None) -> Location:
    return promote(written(f"{key & 0xFFFF:x}", previous_key=previous))


def chain(keys: list[int], previous: int | None = None) -> list[Change]:
    return [(key, (), (serving(key, keys[at - 1] if at else previous),)) for at, key in enumerate(keys)]


def read(table: BlockTable, keys: list[int]) -> tuple[int, list[bytes]]:
    """(hits, wire bytes of each hit); parts are cut at the known block sizes."""
    out: list[bytes | bytearray] = []
    hits = table.serving_run(keys, out)
    expected = [table.get(key)[0].wire for key in keys[:hits]]
    assert b"".join(out) == b"".join(expected)
    return hits, expected


@pytest.mark.parametrize("packing", PACKINGS, ids=["fixed", "wire"])
def test_a_packing_puts_keys_side_by_side(packing: KeyPacking) -> None:
    packed = packing.pack(KEYS)
    assert packed == b"".join(packing.pack([key]) for key in KEYS)
    assert [packing.width(key) for key in KEYS] == [len(packing.pack([key])) for key in KEYS]
    assert packing.unpack(packed) == KEYS
    assert packing.pack([]) == b""


@pytest.mark.parametrize("packing", PACKINGS, ids=["fixed", "wire"])
@pytest.mark.parametrize("length", [1, MIN_RUN - 1, MIN_RUN, MAX_RUN, MAX_RUN + 1, 3 * MAX_RUN])
def test_what_was_written_in_a_row_is_read_in_a_row(packing: KeyPacking, length: int) -> None:
    table = BlockTable(packing=packing)
    keys = [key * 7 - 300 for key in range(length)]
    table.put_all(chain(keys))
    assert read(table, keys)[0] == length
    for start in range(0, length, 37):
        assert read(table, keys[start:])[0] == length - start
    out: list[bytes | bytearray] = []
    assert table.serving_run([*keys, 10**9], out) == length
    assert len(out) <= -(-length // MAX_RUN) or length % MAX_RUN < MIN_RUN or length < MIN_RUN


@pytest.mark.parametrize("packing", PACKINGS, ids=["fixed", "wire"])
def test_a_request_that_leaves_the_run_gets_exactly_the_common_part(packing: KeyPacking) -> None:
    table = BlockTable(packing=packing)
    keys = list(range(1000, 1100))
    table.put_all(chain(keys))
    for common in range(100):
        assert read(table, [*keys[:common], 5, *keys[common:]])[0] == common


def test_short_additions_to_the_end_join_the_run() -> None:
    table = BlockTable()
    keys = list(range(20))
    table.put_all(chain(keys))
    for key in range(20, 40):
        table.put_all(chain([key], previous=key - 1))
    out: list[bytes | bytearray] = []
    assert table.serving_run(list(range(40)), out) == 40
    assert len(out) == 1


def test_a_branch_from_the_middle_does_not_join() -> None:
    table = BlockTable()
    table.put_all(chain(list(range(20))))
    branch = list(range(100, 110))
    table.put_all(chain(branch, previous=9))
    assert read(table, [*range(10), *branch])[0] == 20
    assert read(table, list(range(20)))[0] == 20


def test_a_block_that_stops_serving_ends_reads_in_front_of_it_until_it_serves_again() -> None:
    table = BlockTable()
    keys = list(range(30))
    table.put_all(chain(keys))
    before = table.get(12)
    doomed = (condemn(before[0]),)
    table.put_all([(12, before, doomed)])
    assert read(table, keys)[0] == 12
    assert read(table, keys[13:])[0] == 17
    assert table.get(12) == doomed
    again = (serving(12, 11),)
    table.put_all([(12, doomed, again)])
    assert read(table, keys)[0] == 30


def test_a_half_dead_run_gives_its_memory_back_and_keeps_the_living() -> None:
    table = BlockTable()
    keys = list(range(64))
    table.put_all(chain(keys))
    for key in range(0, 64, 2):
        table.put_all([(key, table.get(key), ())])
    table.put_all([(1, table.get(1), ())])
    living = list(range(3, 64, 2))
    assert [table.get(key)[0].location_id for key in living] == [f"{key:x}" for key in living]
    assert read(table, living)[0] == len(living)
    assert len(table) == len(living)
    run = table._runs[1] or table._runs[-1]
    assert run is not None
    assert len(run) == len(living)


def test_a_run_without_members_is_gone_and_its_number_is_used_again() -> None:
    table = BlockTable()
    for _ in range(5):
        keys = list(range(16))
        table.put_all(chain(keys))
        table.put_all([(key, table.get(key), ()) for key in keys])
    assert len(table) == 0
    assert table._runs == [None, None]


def test_a_serving_block_may_be_replaced_by_another_serving_one_in_the_same_call() -> None:
    table = BlockTable()
    keys = list(range(16))
    table.put_all(chain(keys))
    table.put_all([(key, table.get(key), (promote(written("new"), 7),)) for key in keys])
    assert read(table, keys)[0] == 16
    assert {table.get(key)[0].checksum for key in keys} == {7}


def test_a_match_counts_members_and_bytes() -> None:
    run = Run()
    packing = WirePacking()
    run.extend(KEYS, [b"w%d" % at for at in range(len(KEYS))], packing)
    packed = packing.pack(KEYS)
    assert run.match(0, packed, 0, len(KEYS)) == (len(KEYS), len(packed))
    skip = len(packing.pack(KEYS[:3]))
    assert run.match(3, packed, skip, 2) == (2, len(packing.pack(KEYS[3:5])))
    run.kill(5)
    assert run.match(3, packed, skip, 9) == (2, len(packing.pack(KEYS[3:5])))
    assert bytes(run.slice(3, 2)) == b"w3w4"
