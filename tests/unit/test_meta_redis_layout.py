"""What blocks look like in Redis: upstream's recorded layouts are read, and what is written is them, byte for byte."""

from __future__ import annotations

import json
from dataclasses import dataclass

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcm.common.errors import StorageError
from kvcm.common.redis.fenced import arg
from kvcm.data_storage.model import StorageType
from kvcm.meta.location import Block, Location, LocationFields, Status, begin_write, condemn, promote, restore
from kvcm.meta.record import DamagedRecord, RecordCodec
from kvcm.meta.redis_read import BlockUnpacker
from kvcm.meta.redis_write import BlockPacker, RecentWrites
from kvcm.protocol.location_encoder import ProtoLocationEncoder

pytestmark = pytest.mark.unit

ENCODER = ProtoLocationEncoder()
SLOTS: dict[str, int] = {}
RECORDS = RecordCodec(ENCODER, lambda name: SLOTS.setdefault(name, len(SLOTS)))
URI = "file://nfs_01/tmp/nfs/i1/tp0/7b_0123456789abcdef?blkid=1&size=1024"


def location(name: str = "0a1b2c3d", uri: str = URI, previous: int | None = None, specs: int = 1, created: int = 1_700_000_000_000_000) -> Location:
    named = [(f"tp{number}", uri) for number in range(specs)]
    size = 1024 * specs
    wire = ENCODER.encode(StorageType.NFS, named)
    slot = RECORDS.slot_of("nfs_01")
    return begin_write(type_code=StorageType.NFS, storage_slot=slot, create_time_us=created, size=size, location_id=name, previous_key=previous, wire=wire)


def unpack(**fields: str | bytes) -> Block:
    return BlockUnpacker(RECORDS).unpack(
        [raw for name, value in fields.items() for raw in (name.encode(), value if isinstance(value, bytes) else value.encode())]
    )


def packed(blocks: dict[int, Block], *, legacy: bool = False) -> dict[int, dict[str, str]]:
    """What the scripts are told to store, by key; the time is theirs to add."""
    found: dict[int, dict[str, str]] = {}
    for part in BlockPacker(RECORDS, legacy=legacy).pack(blocks):
        reader = hiredis.Reader()
        reader.feed(b"*%d\r\n" % part.number + part.args)
        args = [item.decode() for item in reader.gets()]
        found |= of_chain(args) if part.chain else of_fields(args)
    assert found.keys() == blocks.keys()
    return {key: found[key] for key in blocks}


def of_chain(args: list[str]) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    before = ""
    for key, text in zip(args[::2], args[1::2], strict=True):
        if not key:
            before = text
        elif not text:
            found[int(key)] = {}
        else:
            found[int(key)] = ({"BP#prev_key": before} if before else {}) | {f"L#{text[7:15]}": text}
            before = key
    return found


def of_fields(args: list[str]) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    at = 0
    while at < len(args):
        fields = args[at + 2 : at + 2 + int(args[at + 1])]
        found[int(args[at])] = dict(zip(fields[::2], fields[1::2], strict=True))
        at += 2 + len(fields)
    return found


def test_a_written_block_is_that_of_upstream() -> None:
    block = (promote(location(previous=-5)),)
    text = '{"id":"0a1b2c3d","status":3,"type":4,"spec_size":1,"create_time":1700000000000000,"location_specs":[{"name":"tp0","uri":"URI"}]}'.replace(
        "URI", URI
    )
    assert packed({7: block}) == {7: {"BP#prev_key": "-5", "L#0a1b2c3d": text}}


def test_a_block_in_the_older_layout_is_that_of_the_recorded_samples() -> None:
    # Recorded (upstream-samples): fields __uri__, _prev_key_, __lru_time__; records without a creation time.
    text = '{"0a1b2c3d":{"id":"0a1b2c3d","status":3,"type":4,"spec_size":1,"location_specs":[{"name":"tp0","uri":"URI"}]}}'.replace("URI", URI)
    block = unpack(__uri__=text, _prev_key_="12", __lru_time__="1700000000000000")
    assert block == (promote(location(previous=12, created=0)),)
    assert packed({7: block}, legacy=True) == {7: {"__uri__": text, "_prev_key_": "12"}}


def test_locations_in_fields_of_their_own_are_read_in_the_older_naming_too() -> None:
    text = json.dumps(RECORDS.to_dict(promote(location())))
    assert unpack(__loc__0a1b2c3d=text, __lru_time__="5") == (promote(location()),)


def test_properties_that_are_not_ours_are_not_looked_at() -> None:
    text = json.dumps(RECORDS.to_dict(location()))
    fields = {"BP#lru_time": "1", "BP#ttl": "x", "BP#hit_count": "3", "P#0a1b2c3d#tier": "cold", "L#0a1b2c3d": text}
    assert unpack(**fields) == (location(),)
    assert unpack(**{"BP#lru_time": "1"}) == ()


def test_a_record_with_fields_of_later_releases_is_read() -> None:
    record = RECORDS.to_dict(location()) | {"migration_copy_guard": {"a": 1}, "checksum": 9}
    record["location_specs"][0]["node_id"] = "n1"
    assert unpack(**{"L#0a1b2c3d": json.dumps(record)}) == (restore(location().fields()._replace(checksum=9), location().wire),)


def test_what_hosts_report_is_left_to_them() -> None:
    record = RECORDS.to_dict(location()) | {"type": int(StorageType.EVENT_REPORT_L2)}
    assert unpack(**{"L#0a1b2c3d": json.dumps(record)}) == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("L#0a1b2c3d", "{"),
        ("L#0a1b2c3d", "[]"),
        ("L#0a1b2c3d", b"\xff"),
        ("L#other", json.dumps(RECORDS.to_dict(location()))),
        ("L#0a1b2c3d", json.dumps(RECORDS.to_dict(location()) | {"status": 9})),
        ("L#0a1b2c3d", json.dumps(RECORDS.to_dict(location()) | {"type": 77})),
        ("L#0a1b2c3d", json.dumps(RECORDS.to_dict(location())).replace("size=1024", "size=many")),
        ("L#0a1b2c3d", json.dumps(RECORDS.to_dict(location())).replace("size=1024", "size=1&size=2x")),
        ("__uri__", '{"a":5}'),
        ("__uri__", "nothing"),
        ("BP#prev_key", "many"),
        ("BP#prev_key", str(1 << 63)),
    ],
)
def test_a_damaged_record_is_said_to_be_damaged(name: str, text: str | bytes) -> None:
    with pytest.raises(DamagedRecord):
        unpack(**{"L#ffffffff": json.dumps(RECORDS.to_dict(location("ffffffff"))), name: text})


def flat(*blocks: Location, stamp: bytes = b"BP#lru_time") -> list[bytes]:
    """What HGETALL says of a block that was written in the layout of today."""
    return [stamp, b"1700000000000000", *[raw for field in BlockPacker(RECORDS).fields_of(blocks) for raw in field]]


def test_of_many_replies_the_blocks_come_and_all_that_is_not_usual_a_second_time() -> None:
    usual, late = (promote(location(previous=7)),), (promote(location("0a1b2c3e")),)
    two = (location("00000001"), location("00000002"))
    text = hiredis.ReplyError("WRONGTYPE Operation against a key holding the wrong kind of value")
    broken = [b"L#0a1b2c3d", b"{"]
    replies = [(1, flat(*usual)), (2, broken), (3, flat(*usual)), (4, text), (5, flat(*two)), (6, flat(*late)), (7, []), (8, flat(*late, stamp=b"other"))]
    blocks, odd = BlockUnpacker(RECORDS).sort(replies)
    assert [(key, set(block)) for key, block in blocks] == [(1, set(usual)), (3, set(usual)), (5, set(two)), (6, set(late)), (8, set(late))]
    assert [(one.key, one.reply) for one in odd] == [replies[at] for at in (1, 3, 4, 6, 7)]
    assert [one.block if not one.block else len(one.block) for one in odd] == [None, None, 2, (), 1]
    assert [one.key for one in odd if one.is_damaged] == [2], "a key of another type is nobody's block"


def test_a_read_gives_the_blocks_that_are_there_and_refuses_a_damaged_one() -> None:
    block = (promote(location()),)
    text = hiredis.ReplyError("WRONGTYPE Operation against a key holding the wrong kind of value")
    replies = [(1, flat(*block)), (2, text), (3, []), (4, [b"BP#lru_time", b"1"])]
    assert BlockUnpacker(RECORDS).unpack_all(replies) == {1: block}
    with pytest.raises(StorageError, match="damaged") as caught:
        BlockUnpacker(RECORDS).unpack_all([*replies, (5, [b"L#0a1b2c3d", b"{"])])
    assert isinstance(caught.value.__cause__, DamagedRecord)


@dataclass(frozen=True)
class Shape:
    status: Status
    name: str
    uri: str
    previous: int | None
    checksum: int
    created: int
    specs: int


KEYS = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.sampled_from(["", "x", "ä", '"', "\\", "size", "%25", "a&b=c"])
URIS = st.builds(
    "file://{}/p{}/q?blkid=1&{}size={}".format, st.sampled_from(["s1", "s2", "näme"]), TEXTS, st.sampled_from(["", "x=y&"]), st.integers(0, 1 << 40)
)
SHAPES = st.builds(
    Shape,
    st.sampled_from([Status.WRITING, Status.SERVING, Status.DELETING]),
    st.text("abcdef0123456789_#-", min_size=1, max_size=8),
    URIS,
    st.none() | KEYS,
    st.sampled_from([0, 0, 5, -1]),
    st.sampled_from([0, 1, 1_700_000_000_000_000]),
    st.integers(1, 2),
)


def made(shape: Shape) -> Location:
    wire = ENCODER.encode(StorageType.NFS, [(f"tp{number}", shape.uri) for number in range(shape.specs)])
    size = shape.specs * int(shape.uri.rpartition("size=")[2])
    slot = RECORDS.slot_of(shape.uri.split("/")[2])
    return restore(LocationFields(shape.status, StorageType.NFS, slot, shape.created, size, shape.name, shape.previous, shape.checksum), wire)


BLOCKS = st.lists(SHAPES, max_size=3, unique_by=lambda shape: shape.name).map(lambda shapes: tuple(map(made, shapes)))


@given(st.dictionaries(KEYS, BLOCKS, max_size=6), st.booleans())
def test_what_is_written_is_read_and_the_quick_way_writes_the_same(blocks: dict[int, Block], legacy: bool) -> None:
    stored = packed(blocks, legacy=legacy)
    packer = BlockPacker(RECORDS, legacy=legacy)
    for key, block in blocks.items():
        assert stored[key] == {name.decode(): value.decode() for name, value in (packer.fields_of(block) if block else [])}
        flat = [item.encode() for pair in stored[key].items() for item in pair]
        assert set(BlockUnpacker(RECORDS).unpack(flat)) == set(block)


@given(st.lists(KEYS, min_size=1, max_size=6, unique=True), st.none() | KEYS, st.sampled_from(["", "ä", '"']), st.data())
def test_a_chain_is_written_as_its_blocks_one_by_one(keys: list[int], first: int | None, odd: str, data: st.DataObject) -> None:
    previous = [first, *keys[:-1]]
    if data.draw(st.booleans()):
        previous[data.draw(st.integers(0, len(keys) - 1))] = data.draw(st.none() | KEYS)
    blocks: dict[int, Block] = {}
    for at, (key, before) in enumerate(zip(keys, previous, strict=True)):
        blocks[key] = (promote(location(f"{at:08x}", f"file://nfs_01/{odd}{key}?size=1024", before)),)
    assert packed(blocks) == {key: {name.decode(): value.decode() for name, value in BlockPacker(RECORDS).fields_of(block)} for key, block in blocks.items()}


@given(st.lists(KEYS, min_size=4, max_size=8, unique=True), st.none() | KEYS, st.sampled_from(["none", "checksum", "uri", "created", "state", "key"]))
def test_what_ends_a_write_is_packed_as_if_its_beginning_had_not_been(keys: list[int], first: int | None, other: str) -> None:
    previous = [first, *keys[:-1]]
    begun: dict[int, Block] = {key: (location(f"{at:08x}", f"file://nfs_01/%{key}?size=1024", previous[at]),) for at, key in enumerate(keys)}
    ended: dict[int, Block] = {key: (promote(block[0], 5 if other == "checksum" else 0),) for key, block in begun.items()}
    at = keys[len(keys) // 2]
    if other == "uri":
        ended[at] = (promote(location(f"{keys.index(at):08x}", f"file://nfs_01/x{at}?size=1024", previous[keys.index(at)])),)
    elif other == "created":
        ended[at] = (promote(location(f"{keys.index(at):08x}", f"file://nfs_01/%{at}?size=1024", previous[keys.index(at)], created=5)),)
    elif other == "state":
        ended[at] = (condemn(begun[at][0]),)
    elif other == "key":
        ended[-at - 1] = ended.pop(at)
    warm = BlockPacker(RECORDS)
    warm.pack(begun)
    again = warm.pack(ended)
    assert [part._replace(same=False) for part in again] == BlockPacker(RECORDS).pack(ended)
    assert any(part.same for part in again) == (other == "none")


@given(st.lists(st.tuples(st.integers(1, 9), st.none() | KEYS, st.sampled_from([0, 5, 1_700_000_000_000_000]), st.booleans()), min_size=1, max_size=5))
def test_several_chains_are_written_as_their_blocks_one_by_one(chains: list[tuple[int, int | None, int, bool]]) -> None:
    blocks: dict[int, Block] = {}
    for length, previous, created, finished in chains:
        for _ in range(length):
            key = len(blocks) * 7919 - 20
            begun = location(f"{len(blocks):08x}", f"file://nfs_01/{key}?size=1024", previous, created=created)
            blocks[key] = (promote(begun) if finished else begun,)
            previous = key
    assert packed(blocks) == {key: {name.decode(): value.decode() for name, value in BlockPacker(RECORDS).fields_of(block)} for key, block in blocks.items()}
    (whole,) = BlockPacker(RECORDS).pack(blocks)
    assert whole.chain


def test_what_is_kept_of_writes_is_bounded_and_forgotten() -> None:
    recent = RecentWrites(max_bytes=3000)
    packer = BlockPacker(RECORDS, recent=recent)
    for start in range(0, 4000, 8):
        keys = range(start, start + 8)
        packer.pack({key: (location(f"{key:08x}", previous=key - 1 if key > start else None),) for key in keys})
        assert 0 < recent.kept_bytes <= 3000
    packer.pack({key: (promote(location(f"{key:08x}", previous=key - 1 if key > start else None)),) for key in keys})
    assert recent.kept_bytes == 0


def test_neighbours_share_nothing_but_what_is_the_same() -> None:
    blocks: dict[int, Block] = {
        1: (location("aaaaaaaa"),),
        2: (promote(location("bbbbbbbb", previous=1), 77),),
        3: (condemn(location("cccc", previous=2)),),
        4: (),
        5: (location("dddddddd", URI.replace("1024", "2048"), previous=3, created=5),),
        6: (location("eeeeeeee", previous=5, specs=2),),
    }
    stored = packed(blocks)
    assert list(stored) == list(blocks)
    assert [json.loads(next(iter(fields[name] for name in fields if name[0] == "L"), "{}")).get("status") for fields in stored.values()] == [
        2,
        3,
        4,
        None,
        2,
        2,
    ]
    assert json.loads(stored[2]["L#bbbbbbbb"])["checksum"] == 77
    assert [fields.get("BP#prev_key") for fields in stored.values()] == [None, "1", "2", None, "3", "5"]


def test_an_argument_is_packed_with_its_length_in_bytes() -> None:
    assert arg("ä".encode()) == b"$2\r\n\xc3\xa4\r\n"
