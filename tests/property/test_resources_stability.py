"""Translation and comparison are stable: spec -> server -> spec, and nothing differs from itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.config.model import CachePreferStrategy, InstanceGroup, ReclaimPolicy, ReclaimStrategy, TriggerStrategy
from kvcm.config.registry_rules import check_group, check_storage
from kvcm.data_storage.dummy import dummy_layout
from kvcm.data_storage.layout import Layout, file_layout, hf3fs_layout
from kvcm.data_storage.model import Storage, StorageType
from kvcm.data_storage.naming import MAX_KEYS_PER_FILE
from kvcm.protocol.domain_codec import group_from_proto, group_to_proto, storage_from_proto, storage_to_proto
from kvcm.resources.duration import MAX_MS, format_duration, parse_duration
from kvcm.resources.errors import Problem, ResourceError
from kvcm.resources.group import MAX_INSTANCES, InstanceGroupResource
from kvcm.resources.normalise import diff
from kvcm.resources.parse import parse_model
from kvcm.resources.quantity import MAX_BYTES, format_quantity, parse_quantity
from kvcm.resources.schema import KINDS, root_schema
from kvcm.resources.storage import StorageResource
from kvcm.resources.testing import violations
from kvcm.resources.translate import group_from_resource, group_spec, storage_from_resource, storage_spec
from kvcm.resources.yaml_text import YamlProblem, read_documents

pytestmark = pytest.mark.property
SOME = settings(deadline=None, max_examples=60)
SCHEMAS = {info.kind: root_schema(info) for info in KINDS}

Json = dict[str, Any]

names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,10}[A-Za-z0-9])?", fullmatch=True)
metadata_names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?([.][a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?){0,2}", fullmatch=True)
folders = st.lists(st.from_regex(r"[A-Za-z0-9_@%-]{1,6}", fullmatch=True), min_size=1, max_size=4).map("/".join)
packs = st.integers(1, MAX_KEYS_PER_FILE)
quantities = st.one_of(
    st.integers(0, MAX_BYTES),
    st.integers(0, MAX_BYTES).map(str),
    st.builds("{}{}".format, st.integers(0, 7), st.sampled_from(["k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e9", "E3", ""])),
    st.builds("{}.{}{}".format, st.integers(0, 900), st.sampled_from(["5", "25", "125"]), st.sampled_from(["k", "Mi", "G", "Ti"])),
)
durations = st.integers(0, MAX_MS).map(format_duration)
reclaims = st.builds(
    ReclaimStrategy,
    storage_unique_name=st.text(min_size=1, max_size=5),
    reclaim_policy=st.sampled_from(ReclaimPolicy),
    trigger_strategy=st.builds(TriggerStrategy, st.integers(0, 2**40), st.floats(0, 5, allow_nan=False)),
    reclaim_step_size=st.integers(0, 9),
)


def _some(required: Json, optional: Json) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(required, optional=optional)


nfs = _some({"rootPath": folders.map("/{}".format)}, {"keyCountPerFile": packs})
three_fs = {"mountpoint": folders.map("/{}".format), "rootDir": folders}
three_fs_options = {"clusterName": names, "keyCountPerFile": packs, "touchFileWhenCreate": st.booleans()}
backends = st.one_of(
    st.fixed_dictionaries({"nfs": nfs}),
    st.fixed_dictionaries({"dummy": nfs}),
    st.fixed_dictionaries({"threeFS": _some(three_fs, three_fs_options)}),
    st.fixed_dictionaries(
        {
            "vcnsThreeFS": _some(
                {**three_fs, "remoteHost": names, "remotePort": st.integers(1, 65535), "metaStorageUri": names.map("redis://{}:1/0".format)},
                three_fs_options,
            )
        }
    ),
)


def _resource(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "kvcm.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": {"managerRef": {"name": "m"}, **spec}}


storage_documents = st.builds(
    lambda name, backend, more: _resource("Storage", name, {**backend, **more}),
    metadata_names,
    backends,
    _some({}, {"name": names, "enabled": st.booleans(), "adoptionPolicy": st.sampled_from(["Adopt", "AdoptIfEqual"])}),
)
by_type = _some({}, dict.fromkeys(["nfs", "threeFS", "dummy"], quantities))
group_documents = st.builds(
    lambda name, spec: _resource("InstanceGroup", name, spec),
    metadata_names,
    _some(
        {"storages": st.lists(names, min_size=1, max_size=5, unique=True), "quota": _some({"total": quantities}, {"byType": by_type})},
        {
            "name": names,
            "maxInstances": st.integers(1, MAX_INSTANCES),
            "placement": _some({}, {"preference": st.sampled_from(["PreferThreeFS", "AlwaysThreeFS", "PreferVcnsThreeFS"])}),
            "reclaim": _some({}, {"delayBeforeDelete": durations}),
            "metadataIndex": _some(
                {},
                {
                    "maxKeys": st.integers(1, 10**10),
                    "backend": st.one_of(
                        st.just({"type": "local"}),
                        _some({"type": st.just("redis")}, {"writeMode": st.sampled_from(["WriteThrough", "WriteBehind"])}),
                        st.fixed_dictionaries({"type": st.just("file"), "uri": folders.map("file:///{}".format)}),
                    ),
                },
            ),
        },
    ),
)


def _storage(document: Json) -> StorageResource:
    return parse_model(StorageResource, document)


def _group(document: Json) -> InstanceGroupResource:
    return parse_model(InstanceGroupResource, document)


@SOME
@given(storage_documents)
def test_D9_storage_spec_to_server_to_spec_is_stable(document: Json) -> None:
    server = storage_from_resource(_storage(document))
    again = storage_from_resource(_storage(_resource("Storage", document["metadata"]["name"], {"name": server.name, **storage_spec(server)})))
    assert again == server
    assert diff(server, server) == []


@SOME
@given(group_documents)
def test_D9_group_spec_to_server_to_spec_is_stable(document: Json) -> None:
    server = group_from_resource(_group(document))
    spec = {"name": server.name, **group_spec(server)}
    again = group_from_resource(_group(_resource("InstanceGroup", document["metadata"]["name"], spec)))
    assert again == server
    assert diff(server, server) == []


@SOME
@given(storage_documents, storage_documents)
def test_D9_a_storage_brought_to_its_spec_stays(wanted: Json, other: Json) -> None:
    resource = _storage(wanted)
    before: Storage = storage_from_resource(_storage(other))
    after = storage_from_resource(resource, before)
    assert storage_from_resource(resource, after) == after
    assert diff(storage_from_resource(resource, after), after) == []


@SOME
@given(group_documents, group_documents, st.text(max_size=20), reclaims)
def test_D9_a_group_brought_to_its_spec_stays_and_keeps_what_the_spec_cannot_say(wanted: Json, other: Json, user_data: str, reclaim: ReclaimStrategy) -> None:
    resource = _group(wanted)
    made = group_from_resource(_group(other))
    config = made.cache_config
    before: InstanceGroup = replace(
        made,
        user_data=user_data,
        version=9,
        cache_config=replace(
            config,
            reclaim_strategy=reclaim,
            meta_indexer=replace(config.meta_indexer, mutex_shard_num=64),
            data_storage_strategy=CachePreferStrategy.ALWAYS_VCNS_3FS,
            migration_json='{"strategies":[]}',
        ),
    )
    after = group_from_resource(resource, before)
    assert group_from_resource(resource, after) == after
    assert diff(group_from_resource(resource, after), after) == []
    assert (after.user_data, after.version, after.cache_config.migration_json) == (user_data, 9, '{"strategies":[]}')
    assert after.cache_config.meta_indexer.mutex_shard_num == 64
    delay = parse_duration(resource.spec.reclaim.delay_before_delete)
    assert after.cache_config.reclaim_strategy == replace(reclaim, delay_before_delete_ms=delay)


@SOME
@given(group_documents, reclaims)
def test_D10_reclaim_settings_that_no_spec_can_say_are_never_a_difference(document: Json, reclaim: ReclaimStrategy) -> None:
    server = group_from_resource(_group(document))
    delay = server.cache_config.reclaim_strategy.delay_before_delete_ms
    other = replace(server, cache_config=replace(server.cache_config, reclaim_strategy=replace(reclaim, delay_before_delete_ms=delay)))
    assert diff(server, other) == []
    assert group_from_resource(_group(document), other) == other


@SOME
@given(group_documents, group_documents)
def test_D9_groups_without_a_difference_are_equal_where_a_spec_owns_them(left: Json, right: Json) -> None:
    one, two = group_from_resource(_group(left)), group_from_resource(_group(right))
    assert (diff(one, two) == []) is (group_spec(one) == group_spec(two))
    assert [change.path for change in diff(one, two)] == [change.path for change in diff(two, one)]


@SOME
@given(st.one_of(storage_documents, group_documents))
def test_D9_what_the_models_accept_the_schema_accepts(document: Json) -> None:
    assert violations(SCHEMAS[document["kind"]], document) == []


@SOME
@given(storage_documents, group_documents)
def test_D9_what_a_spec_says_passes_the_wire_and_the_registry_unchanged(storage_document: Json, group_document: Json) -> None:
    storage = storage_from_resource(_storage(storage_document))
    check_storage(storage)
    layout: Layout = {StorageType.NFS: file_layout, StorageType.DUMMY: dummy_layout}.get(storage.type, hf3fs_layout)(storage)
    assert layout.namer().keys_per_file == layout.keys_per_file
    assert replace(storage_from_proto(storage_to_proto(storage)), enabled=storage.enabled) == storage
    group = group_from_resource(_group(group_document))
    check_group(group)
    assert group_from_proto(group_to_proto(group)) == group


@SOME
@given(st.integers(0, MAX_BYTES))
def test_D9_quantities_print_and_read_back_exactly(value: int) -> None:
    assert parse_quantity(format_quantity(value)) == value


@SOME
@given(quantities)
def test_D9_a_quantity_is_exact_or_refused_and_its_canonical_text_is_a_fixed_point(text: str | int) -> None:
    try:
        value = parse_quantity(text)
    except ValueError:
        return
    assert 0 <= value <= MAX_BYTES
    assert format_quantity(parse_quantity(format_quantity(value))) == format_quantity(value)


@SOME
@given(st.integers(0, MAX_MS))
def test_D9_durations_print_and_read_back_exactly(value: int) -> None:
    assert parse_duration(format_duration(value)) == value


@SOME
@given(st.one_of(st.text(max_size=200), st.binary(max_size=200).map(lambda raw: raw.decode("latin-1"))))
def test_D10_any_text_is_documents_or_one_sentence(text: str) -> None:
    problem, documents = "", None
    try:
        documents = read_documents(text.encode("utf-8", "surrogatepass"))
    except YamlProblem as error:
        problem = str(error)
    assert isinstance(documents, list) or problem
    assert "Traceback" not in problem


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@SOME
@given(st.one_of(storage_documents, group_documents), st.data())
def test_D10_a_damaged_resource_is_refused_with_a_sentence_and_never_by_accident(document: Json, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(document["spec"])))
    damaged = {**document, "spec": {**document["spec"], field: data.draw(json_values)}}
    model: type[StorageResource] | type[InstanceGroupResource] = StorageResource if document["kind"] == "Storage" else InstanceGroupResource
    found: list[Problem] = []
    try:
        parse_model(model, damaged)
    except ResourceError as error:
        found += error.problems
    assert all(problem.sentence and problem.path.startswith("spec") for problem in found)
