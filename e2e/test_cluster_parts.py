"""The parts of the test bed that need no cluster: its cache, settings, images and names."""

from __future__ import annotations

import json
import os
import struct
import tarfile
from pathlib import Path

import pytest

from e2e.cluster import dns, served, settings
from e2e.cluster.cache import Cache, key_of
from e2e.cluster.command import run
from e2e.cluster.errors import BedError
from e2e.cluster.journal import identity
from e2e.cluster.oci import ImageConfig, full_name, write_image
from e2e.cluster.space import cgroup_mounts
from e2e.cluster.waiting import eventually

pytestmark = pytest.mark.e2e

# --- the cache ---


def test_the_key_follows_the_content_of_the_inputs(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    recipe.write_text("one", encoding="utf-8")
    first = key_of(recipe, "x")
    assert key_of(recipe, "x") == first
    recipe.write_text("two", encoding="utf-8")
    assert key_of(recipe, "x") != first
    assert key_of("ab", "c") != key_of("a", "bc")


def test_an_entry_is_made_once_and_its_work_folder_goes(tmp_path: Path) -> None:
    cache, made = Cache(tmp_path / "cache", lambda _: None), []

    def make(target: Path, work: Path) -> None:
        made.append(work)
        (work / "tree").write_text("big", encoding="utf-8")
        (target / "program").write_text("done", encoding="utf-8")

    for _ in range(2):
        assert (cache.obtain("thing", "k1", make) / "program").read_text(encoding="utf-8") == "done"
    assert len(made) == 1
    assert not made[0].exists()


def test_a_failed_build_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", lambda _: None)

    def make(target: Path, _work: Path) -> None:
        (target / "half").write_text("half", encoding="utf-8")
        raise BedError("the compiler failed")

    with pytest.raises(BedError, match="compiler"):
        cache.obtain("thing", "k1", make)
    assert not cache.has("thing", "k1")
    assert [path.name for path in cache.root.iterdir()] == ["lock"]


def test_old_entries_of_a_name_are_pruned_and_others_stay(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", lambda _: None)
    for number in range(4):
        entry = cache.obtain("thing", f"k{number}", lambda target, work: None)
        os.utime(entry, (number, number))
    cache.obtain("other", "k0", lambda target, work: None)
    assert sorted(path.name for path in cache.root.glob("*-k*")) == ["other-k0", "thing-k2", "thing-k3"]


def test_a_command_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(BedError, match="not done after"):
        run(["/bin/sh", "-c", f"sleep 30 & echo $! >{tmp_path}/pid; wait"], timeout=1.0)
    child = int((tmp_path / "pid").read_text(encoding="ascii"))
    assert eventually(lambda: identity(child) is None, "the child has ended")


# --- settings and the machine ---


@pytest.mark.parametrize(("name", "value"), [("KVCM_E2E_NODES", "0"), ("KVCM_E2E_NODES", "two"), ("KVCM_E2E_LEVEL", "high")])
def test_a_setting_without_meaning_is_refused(name: str, value: str) -> None:
    with pytest.raises(BedError, match=value):
        settings.from_environment({name: value})


def test_the_cache_lies_where_the_user_says() -> None:
    assert settings.from_environment({"XDG_CACHE_HOME": "/c"}).cache == Path("/c/kvcm-e2e")
    assert settings.from_environment({"XDG_CACHE_HOME": "/c", "KVCM_E2E_CACHE": "/d"}).cache == Path("/d")


def test_cgroup_mounts_are_read_from_the_mount_table() -> None:
    table = (
        "30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
        "31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "32 25 0:28 / /proc rw - proc proc rw\n"
    )
    cpu = Path("/sys/fs/cgroup/cpu")
    assert cgroup_mounts(table) == {"cpu": cpu, "cpuacct": cpu, "unified": Path("/sys/fs/cgroup/unified")}


def test_a_source_that_differs_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "a.go").write_text("x\nx\n", encoding="utf-8")
    with pytest.raises(BedError, match=r"a\.go"):
        served.edit_once(tmp_path, "a.go", "x\n", "y\n")


# --- images ---


@pytest.mark.parametrize(
    ("short", "full"),
    [("local/x:1", "docker.io/local/x:1"), ("x:1", "docker.io/library/x:1"), ("here.example/x:1", "here.example/x:1")],
)
def test_image_names_are_as_the_kubelet_resolves_them(short: str, full: str) -> None:
    assert full_name(short) == full


@pytest.mark.parametrize("name", ["local/x", "local/x:latest", ":1", "host:5000/x"])
def test_an_image_without_a_fixed_tag_is_refused(name: str) -> None:
    with pytest.raises(BedError, match="tag"):
        full_name(name)


def test_an_image_carries_the_layers_of_its_base(tmp_path: Path) -> None:
    for name in ("base", "app"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name, encoding="utf-8")
    write_image(tmp_path / "base.tar", "local/base:1", [tmp_path / "base"], ImageConfig())
    config = ImageConfig(command=["run"], user="65532")
    write_image(tmp_path / "app.tar", "local/app:2", [tmp_path / "app"], config, base=tmp_path / "base.tar")
    with tarfile.open(tmp_path / "app.tar") as archive:

        def blob(digest: str) -> bytes:
            file = archive.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
            assert file is not None
            return file.read()

        index_file = archive.extractfile("index.json")
        assert index_file is not None
        entry = json.loads(index_file.read())["manifests"][0]
        manifest = json.loads(blob(entry["digest"]))
        facts = json.loads(blob(manifest["config"]["digest"]))
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/local/app:2"
    assert [layer["digest"] for layer in manifest["layers"]] == facts["rootfs"]["diff_ids"]
    assert len(manifest["layers"]) == 2
    assert (facts["config"]["Cmd"], facts["config"]["User"]) == (["run"], "65532")


# --- names in the cluster ---


def _question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


def _names() -> dns.Names:
    names = dns.Names()
    names.services[("shop", "web")] = {"spec": {"clusterIP": "10.96.0.7"}}
    names.services[("shop", "db")] = {"spec": {"clusterIP": "None"}}
    names.services[("shop", "idle")] = {"spec": {"clusterIP": "None"}}
    ready = [{"ip": "10.244.0.3", "hostname": "db-0"}]
    names.endpoints[("shop", "db")] = {"subsets": [{"addresses": ready, "notReadyAddresses": [{"ip": "10.244.0.4"}]}]}
    return names


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("web.shop.svc.cluster.local", ["10.96.0.7"]),
        ("db.shop.svc.cluster.local.", ["10.244.0.3"]),
        ("db-0.db.shop.svc.cluster.local", ["10.244.0.3"]),
        ("db-1.db.shop.svc.cluster.local", None),
        ("idle.shop.svc.cluster.local", []),
        ("pod.web.shop.svc.cluster.local", None),
        ("none.shop.svc.cluster.local", None),
        ("example.org", None),
    ],
)
def test_names_lead_to_services_and_ready_pods(name: str, addresses: list[str] | None) -> None:
    assert _names().addresses(name) == addresses


@pytest.mark.parametrize(
    ("name", "kind", "code", "records"),
    [("WEB.shop.svc.cluster.local", 1, 0, 1), ("web.shop.svc.cluster.local", 28, 0, 0), ("example.org", 1, 3, 0)],
)
def test_an_answer_repeats_the_question_and_counts_its_records(name: str, kind: int, code: int, records: int) -> None:
    question = _question(name, kind)
    said = dns.answer(question, _names().addresses)
    number, flags, asked, answered, _, _ = struct.unpack(">HHHHHH", said[:12])
    assert (number, flags & 0xF, asked, answered) == (7, code, 1, records)
    assert said[12 : len(question)] == question[12:]
    assert len(said) == len(question) + 16 * records


@pytest.mark.parametrize("message", [b"", b"\0" * 5, _question("web.shop")[:-3]])
def test_what_is_no_question_gets_no_answer(message: bytes) -> None:
    with pytest.raises((ValueError, IndexError, struct.error)):
        dns.answer(message, _names().addresses)
