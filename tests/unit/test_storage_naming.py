"""Names of places: wire contract 6.2 to 6.4, and the path tricks that are refused."""

from __future__ import annotations

import pytest

from kvcm.common.errors import InvalidArgument
from kvcm.common.ids import SeededIds
from kvcm.common.uri import parse_uri
from kvcm.data_storage.dummy import dummy_layout
from kvcm.data_storage.layout import Layout, file_layout, hf3fs_layout, packed_slot, parse_block
from kvcm.data_storage.model import DummySpec, Hf3fsSpec, NfsSpec, Storage, StorageType, VcnsHf3fsSpec
from kvcm.data_storage.naming import check_name_part, check_storage_name
from kvcm.data_storage.port import AllocationFailed, AllocationItem

pytestmark = pytest.mark.unit


def nfs(root: str = "/tmp/nfs/", per_file: int = 8) -> Layout:
    return file_layout(Storage("nfs_01", StorageType.NFS, NfsSpec(root, per_file)))


def dummy(root: str = "/d", per_file: int = 1) -> Layout:
    return dummy_layout(Storage("dum", StorageType.DUMMY, DummySpec(root, per_file)))


def names(layout: Layout, *items: tuple[str, int]) -> list[str]:
    return layout.namer().allocate([AllocationItem(text, size) for text, size in items], SeededIds(1)).uris


def test_one_block_per_file_has_no_blkid() -> None:
    uris = names(nfs(per_file=1), ("i/tp0/7b", 1024), ("i/tp0/7c", 1024))
    nonces = SeededIds(1).nonces(2)
    assert uris == [f"file://nfs_01/tmp/nfs/i/tp0/7b_{nonces[0]}?size=1024", f"file://nfs_01/tmp/nfs/i/tp0/7c_{nonces[1]}?size=1024"]


@pytest.mark.parametrize("per_file", [0, -3])
def test_a_key_count_per_file_below_one_acts_as_one(per_file: int) -> None:
    assert "blkid" not in names(nfs(per_file=per_file), ("i/tp0/7b", 8))[0]


def test_packed_runs_share_a_file_and_count_their_slots() -> None:
    uris = names(nfs(per_file=2), ("i/t/1", 8), ("i/t/2", 8), ("i/t/3", 8))
    first, second = SeededIds(1).nonces(2)
    assert uris == [
        f"file://nfs_01/tmp/nfs/i/t/1_{first}?blkid=0&size=8",
        f"file://nfs_01/tmp/nfs/i/t/1_{first}?blkid=1&size=8",
        f"file://nfs_01/tmp/nfs/i/t/3_{second}?blkid=0&size=8",
    ]


def test_a_run_is_cut_where_the_size_changes() -> None:
    parsed = [parse_uri(uri) for uri in names(nfs(), ("i/t/1", 8), ("i/t/2", 8), ("i/u/1", 16), ("i/u/2", 16), ("i/t/9", 8))]
    assert [uri.block_index() for uri in parsed] == [0, 1, 0, 1, 0]
    assert len({uri.path for uri in parsed}) == 3


def test_file_paths_are_plain_concatenation() -> None:
    assert names(nfs(root="/data/kv", per_file=1), ("i/t/1", 8))[0].startswith("file://nfs_01/data/kvi/t/1_")
    layout = nfs(root="/data/kv")
    assert (layout.root, layout.sentinel_name) == ("/data", "kv.kvcm-storage.json")


def test_hf3fs_joins_mount_point_and_root_dir() -> None:
    plain = hf3fs_layout(Storage("h3", StorageType.HF3FS, Hf3fsSpec("/3fs/", "/kv/r/")))
    vcns = hf3fs_layout(Storage("v", StorageType.VCNS_HF3FS, VcnsHf3fsSpec("/3fs", "kv", "h", 1, "redis://m")))
    assert names(plain, ("i/t/1", 8))[0].startswith("hf3fs://h3/3fs/kv/r/i/t/1_")
    assert names(vcns, ("i/t/1", 8))[0].startswith("vcns_hf3fs://v/3fs/kv/i/t/1_")
    assert plain.must_exist == "/3fs"


@pytest.mark.parametrize("root", ["/d", "/d/", "/d//"])
def test_dummy_keeps_the_repeatable_path_without_doubled_slashes(root: str) -> None:
    assert names(dummy(root), ("i/t/7b", 8)) == ["dummy://dum/d/i/t/7b?size=8"]


def test_dummy_names_a_run_by_all_its_keys() -> None:
    pair = [("i/t/1", 8), ("i/t/2", 8)]
    once, again = names(dummy(per_file=2), *pair), names(dummy(per_file=2), *pair)
    other = names(dummy(per_file=2), ("i/t/1", 8), ("i/t/3", 8))
    assert once == again
    assert once[0].startswith("dummy://dum/d/i/t/1_")
    assert once[0] != other[0]
    assert names(dummy(per_file=2), ("i/t/1", 8)) == ["dummy://dum/d/i/t/1?blkid=0&size=8"]


@pytest.mark.parametrize(
    "key",
    [
        "../t/1",
        "i/../1",
        "i/t/..",
        "i//1",
        "",
        "/i/t/1",
        "i/t/",
        "./t/1",
        "i/a?b/1",
        "i/a&b/1",
        "i/a#b/1",
        "i/a\\b/1",
        "i/a\0/1",
        "i/a\n/1",
        "i/\ud800/1",
        ".kvcm-storage.json",
        "i/" + "x" * 256 + "/1",
        "i/t/" + "x" * 250,
        "/".join(["x" * 200] * 30),
    ],
)
@pytest.mark.parametrize("per_file", [1, 8])
def test_path_tricks_are_refused(key: str, per_file: int) -> None:
    namer = nfs(per_file=per_file).namer()
    with pytest.raises(AllocationFailed, match="No place can be allocated"):
        namer.allocate([AllocationItem("i/t/1", 8), AllocationItem(key, 8)], SeededIds())


def test_a_refused_prefix_is_not_remembered_as_good() -> None:
    namer = nfs().namer()
    for _ in range(2):
        with pytest.raises(AllocationFailed):
            namer.allocate([AllocationItem("../t/1", 8)], SeededIds())


@pytest.mark.parametrize("size", [0, -1, 1 << 60])
@pytest.mark.parametrize("per_file", [1, 8])
def test_sizes_out_of_range_are_refused(size: int, per_file: int) -> None:
    with pytest.raises(AllocationFailed, match="size"):
        nfs(per_file=per_file).namer().allocate([AllocationItem("i/t/1", size)], SeededIds())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a?b", "a&b", "a#b", "a\\b", "a\0b", "a\tb", "x" * 256, ".kvcm-x"])
def test_bad_names_are_refused_at_registration(name: str) -> None:
    with pytest.raises(InvalidArgument, match="folder name"):
        check_name_part(name)


@pytest.mark.parametrize("name", ["instance1", "model:v1", "a b", "tp0_F0", "模型"])
def test_ordinary_names_are_accepted(name: str) -> None:
    check_name_part(name)


@pytest.mark.parametrize("name", ["user@host", "host:1"])
def test_a_storage_name_must_stand_as_a_host(name: str) -> None:
    with pytest.raises(InvalidArgument, match="host"):
        check_storage_name(name)


@pytest.mark.parametrize("root", ["", "relative/path", "/a/../b", "/a?b", "/a\0"])
def test_bad_roots_are_refused(root: str) -> None:
    with pytest.raises(InvalidArgument, match="root path"):
        nfs(root=root)
    with pytest.raises(InvalidArgument, match="root path"):
        dummy(root)


def test_a_configuration_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="does not belong to its type"):
        file_layout(Storage("x", StorageType.NFS, DummySpec("/d")))
    with pytest.raises(InvalidArgument, match="does not belong to its type"):
        hf3fs_layout(Storage("x", StorageType.HF3FS, DummySpec("/d")))
    with pytest.raises(InvalidArgument, match="does not belong to its type"):
        dummy_layout(Storage("x", StorageType.DUMMY, NfsSpec("/d")))


@pytest.mark.parametrize(
    "uri",
    [
        "nonsense",
        "hf3fs://nfs_01/tmp/nfs/i/t/1?size=8",
        "file://other/tmp/nfs/i/t/1?size=8",
        "file://u@nfs_01/tmp/nfs/i/t/1?size=8",
        "file://nfs_01:1/tmp/nfs/i/t/1?size=8",
        "file://nfs_01/etc/passwd?size=8",
        "file://nfs_01/tmp/nfs/../../etc/passwd?size=8",
        "file://nfs_01/tmp/nfs/?size=8",
        "file://nfs_01/tmp/nfs/i//1?size=8",
        "file://nfs_01/tmp/nfs/.kvcm-storage.json?size=8",
        "file://nfs_01/tmp/nfs/i/t/1",
        "file://nfs_01/tmp/nfs/i/t/1?size=0",
        "file://nfs_01/tmp/nfs/i/t/1?size=-8",
        "file://nfs_01/tmp/nfs/i/t/1?size=8x",
        "file://nfs_01/tmp/nfs/i/t/1?blkid=x&size=8",
        "file://nfs_01/tmp/nfs/i/t/1?blkid=99999999&size=8",
        "file://nfs_01/tmp/nfs/i/t/1?size=8&more=1",
    ],
)
def test_a_foreign_or_malformed_uri_names_no_place(uri: str) -> None:
    assert parse_block(nfs(), uri) is None


def test_a_place_is_read_back_from_its_uri() -> None:
    layout = nfs(root="/data/kv")
    ref = parse_block(layout, "file://nfs_01/data/kvi/t/1_ab?blkid=3&size=8")
    assert ref is not None
    assert (ref.folders, ref.name, ref.relative, ref.slot, ref.size) == (("kvi", "t"), "1_ab", "i/t/1_ab", 3, 8)
    assert packed_slot(layout, "file://nfs_01/data/kvi/t/1_ab?blkid=3&size=8") == ("i/t/1_ab", 3)
    assert packed_slot(layout, "file://nfs_01/data/kvi/t/1_ab?size=8") is None
    assert packed_slot(layout, "file://other/data/kvi/t/1_ab?blkid=3&size=8") is None
    assert packed_slot(layout, "file://nfs_01/data/kvi/t/1_ab?blkid=x&size=8") is None
