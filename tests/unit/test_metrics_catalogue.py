"""The catalogue: what is in it, that the page says the same, and that nobody makes families beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvcm.metrics import generate
from kvcm.metrics.catalogue import FAMILIES
from kvcm.metrics.text import sanitise

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
# Names that upstream gives to what exists here too (a sample: they must not be renamed by accident).
UPSTREAM = {
    "service.query_counter",
    "service.error_counter",
    "service.query_rt_us",
    "service.error_code",
    "http.request_counter",
    "http.service_query_counter",
    "http.request_parse_time_us_sum",
    "http.service_callback_time_us_sum",
    "http.response_serialize_time_us_sum",
    "http.handler_time_us_sum",
    "manager.request_key_count",
    "manager.prefix_match_len",
    "manager.prefix_match_time_us",
    "manager.get_cache_location_query_block_counter",
    "manager.get_cache_location_hit_block_counter",
    "manager.filter_write_cache_time_us",
    "manager.gen_write_location_us",
    "manager.batch_add_location_time_us",
    "manager.batch_update_location_time_us",
    "manager.write_cache_io_cost_us",
    "meta_indexer.query_key_count",
    "meta_indexer.get_not_exist_key_count",
    "meta_indexer.total_key_count",
    "meta_indexer.total_data_size",
    "data_storage.create_counter",
    "data_storage.create_keys_counter",
    "data_storage.write_bytes_dispatched_total",
    "data_storage.create_keys_qps",
    "data_storage.create_time_us",
    "data_storage.healthy_status",
    "schedule_plan_executor.waiting_task_count",
    "cache_manager.write_location_expire_size",
    "cache_manager_group.usage_ratio",
    "cache_manager_instance.key_count",
    "cache_manager_instance.byte_size",
}


def test_every_family_has_one_name_on_either_page_and_a_meaning() -> None:
    assert len({spec.name for spec in FAMILIES}) == len(FAMILIES)
    assert len({sanitise("kvcm", spec.name) for spec in FAMILIES}) == len(FAMILIES)
    assert all(spec.text.endswith(".") and spec.section for spec in FAMILIES)
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", spec.name) for spec in FAMILIES)


def test_names_of_upstream_are_kept() -> None:
    assert {spec.name for spec in FAMILIES} >= UPSTREAM


def test_the_page_is_what_the_catalogue_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0
    page = tmp_path / "metrics.md"
    assert generate.main(["--check", "--out", str(page)]) == 1
    assert "differs" in capsys.readouterr().err
    assert generate.main(["--out", str(page)]) == 0
    assert generate.main(["--check", "--out", str(page)]) == 0
    text = page.read_text()
    assert all(f"| `{spec.name}` | `{sanitise('kvcm', spec.name)}` |" in text for spec in FAMILIES)


def test_families_are_made_from_the_catalogue_only() -> None:
    made = [path for path in (ROOT / "kvcm").rglob("*.py") if re.search(r"\b(?:Family|Histogram)\(", path.read_text())]
    assert {path.name for path in made} == {"catalogue.py"}
