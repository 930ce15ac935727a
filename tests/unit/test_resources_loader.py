"""Reading resource files: what is read, in which order, what is skipped, and what is refused before it is built."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path

import pytest

from kvcm.resources.errors import MAX_PROBLEMS_SHOWN, Problem, ResourceError
from kvcm.resources.loader import Loaded, load
from kvcm.resources.yaml_text import MAX_BYTES, YamlProblem, read_documents

pytestmark = pytest.mark.unit

HEAD = "apiVersion: kvcm.io/v1alpha1\nkind: Storage\n"


def _storage(name: str, extra: str = "") -> str:
    return f"{HEAD}metadata: {{name: {name}}}\nspec: {{managerRef: {{name: m}}, nfs: {{rootPath: /data/{name}}}{extra}}}\n"


def _names(loaded: Loaded) -> list[str]:
    return [item.resource.metadata.name for item in loaded.resources]


def _write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_directory_is_read_sorted_without_kustomizations_hidden_files_and_subdirectories(tmp_path: Path) -> None:
    _write(tmp_path, "b.yaml", _storage("b"))
    _write(tmp_path, "a.yml", _storage("a"))
    document = '{"apiVersion":"kvcm.io/v1alpha1","kind":"Storage","metadata":{"name":"c"},"spec":{"managerRef":{"name":"m"},"dummy":{"rootPath":"/c"}}}'
    _write(tmp_path, "c.json", document)
    for ignored in ("kustomization.yaml", "kustomization.yml", ".hidden.yaml", "notes.txt"):
        _write(tmp_path, ignored, "[not ours")
    (tmp_path / "sub.yaml").mkdir()
    loaded = load([str(tmp_path)])
    assert _names(loaded) == ["a", "b", "c"]
    assert loaded.notices == ()
    assert loaded.resources[0].where == str(tmp_path / "a.yml")


def test_many_documents_lists_and_empty_documents(tmp_path: Path) -> None:
    items = textwrap.indent(_storage("x"), "    ")
    text = f"---\n# nothing here\n---\n{_storage('a')}---\napiVersion: v1\nkind: List\nitems:\n  -\n{items}"
    loaded = load([_write(tmp_path, "all.yaml", text)])
    assert _names(loaded) == ["a", "x"]
    assert loaded.resources[1].where.endswith("all.yaml, document 3, item 1")
    typed = f"apiVersion: kvcm.io/v1alpha1\nkind: StorageList\nmetadata: {{resourceVersion: '5'}}\nitems:\n  -\n{items}"
    assert _names(load([_write(tmp_path, "typed.yaml", typed)])) == ["x"]


def test_standard_input_is_a_path_of_its_own() -> None:
    loaded = load(["-", "-"], io.BytesIO(_storage("a").encode()))
    assert _names(loaded) == ["a"]
    assert loaded.resources[0].where == "standard input"


def test_what_kubectl_prints_can_be_applied_again() -> None:
    text = _storage("a").replace(
        "{name: a}", "{name: a, uid: u, generation: 3, creationTimestamp: 2026-01-01T00:00:00Z, labels: {app: x}, managedFields: [{manager: k}]}"
    )
    text += "status: {observedGeneration: 3, conditions: [], addedLater: true}\n"
    (item,) = load(["-"], io.BytesIO(text.encode())).resources
    assert item.resource.status is not None
    assert item.resource.status.observed_generation == 3


def test_a_manager_resource_is_skipped_with_one_notice(tmp_path: Path) -> None:
    manager = "apiVersion: kvcm.io/v1alpha1\nkind: KVCacheManager\nmetadata: {name: m}\nspec: {replicas: 1}\n"
    loaded = load([_write(tmp_path, "a.yaml", f"{manager}---\n{manager}---\n{_storage('a')}")])
    assert _names(loaded) == ["a"]
    assert loaded.notices == ("2 KVCacheManager skipped: only the operator acts on it; here the manager is the one given by --manager",)
    assert load([_write(tmp_path, "b.yaml", manager)]).resources == ()


def test_all_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    _write(tmp_path, "a.yaml", _storage("a", ", enabled: 5, other: 1"))
    _write(tmp_path, "b.yaml", f"{_storage('b')}---\n{_storage('c', ', colour: red')}")
    with pytest.raises(ResourceError) as caught:
        load([str(tmp_path), str(tmp_path / "missing.yaml")])
    lines = caught.value.message.splitlines()
    assert len(lines) == 4
    assert lines[0] == f"{tmp_path}/a.yaml: spec.enabled: must be true or false, without quotes"
    assert lines[1].startswith(f"{tmp_path}/a.yaml: spec.other: is not a field that this version knows; known here: managerRef, name, nfs")
    assert lines[2].startswith(f"{tmp_path}/b.yaml, document 2: spec.colour: ")
    assert lines[3] == f"{tmp_path}/missing.yaml: cannot be read (No such file or directory)"


def test_one_resource_in_two_files_is_refused(tmp_path: Path) -> None:
    one, two = _write(tmp_path, "a.yaml", _storage("a")), _write(tmp_path, "b.yaml", _storage("a"))
    with pytest.raises(ResourceError, match="Storage a was already read from") as caught:
        load([one, two])
    assert caught.value.message.startswith(two)
    assert _names(load([one, one])) == ["a"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("kustomization.yaml", "", "is a kustomization"),
        ("empty.yaml", "", "found no resources"),
        ("words.yaml", "hello", "must be a mapping"),
        ("no-kind.yaml", "apiVersion: kvcm.io/v1alpha1", "kind: is required"),
        ("latin.yaml", "\udce9", "not UTF-8"),
        ("control.yaml", "a: \x00", "not valid YAML"),
        ("tag.yaml", "a: !!python/object/apply:os.system [x]", "not valid YAML"),
        ("float.yaml", "a: !!float x", "does not fit its type"),
        ("list-key.yaml", "[a]: b", "a key must be a plain text"),
        ("number-key.yaml", "1: b", "a key must be a text"),
        ("digits.yaml", "a: " + "9" * 5000, "a number may have at most"),
        ("deep.yaml", "[" * 200 + "]" * 200, "nested more than"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ResourceError, match=sentence):
        load([str(path)])


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"holds no \.yaml"):
        load([str(tmp_path)])


def test_aliases_that_explode_are_counted_and_not_built() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 30)]
    with pytest.raises(YamlProblem, match="aliases are written out"):
        read_documents("\n".join(lines).encode())


def test_an_alias_to_itself_is_refused() -> None:
    with pytest.raises(YamlProblem, match="not complete before it"):
        read_documents(b"a: &a [*a]")


def test_aliases_and_merges_of_a_sane_size_work() -> None:
    (document,) = read_documents(b"base: &b {x: 1}\ncopy: *b\nmore: {<<: *b, y: 2}\n")
    assert document == {"base": {"x": 1}, "copy": {"x": 1}, "more": {"x": 1, "y": 2}}


def test_scalars_follow_the_core_schema_only() -> None:
    (document,) = read_documents(b"[yes, on, 2026-01-01, 12:30, 010, true, null, ~, 1.5, 1e3, 0x10]")
    assert document == ["yes", "on", "2026-01-01", "12:30", 10, True, None, None, 1.5, 1000.0, "0x10"]


def test_size_and_documents_are_bounded() -> None:
    with pytest.raises(YamlProblem, match="larger than 1024 KiB"):
        read_documents(b" " * (MAX_BYTES + 1))
    with pytest.raises(ResourceError, match="standard input: is larger than 1024 KiB"):
        load(["-"], io.BytesIO(b" " * (MAX_BYTES + 1)))
    with pytest.raises(YamlProblem, match="more than 1000 documents"):
        read_documents(b"---\n" * 1001)
    with pytest.raises(YamlProblem, match="more than 100000 values"):
        read_documents(b"[" + b",".join([b"1"] * 100_001) + b"]")


def test_a_long_list_of_problems_is_cut() -> None:
    error = ResourceError([Problem(f"problem {number}") for number in range(MAX_PROBLEMS_SHOWN + 3)])
    lines = error.message.splitlines()
    assert len(lines) == MAX_PROBLEMS_SHOWN + 1
    assert lines[-1] == "and 3 more problems"
    assert len(error.problems) == MAX_PROBLEMS_SHOWN + 3
