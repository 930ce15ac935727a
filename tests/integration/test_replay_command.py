"""`kvcm replay` with real managers, real sockets and real files: slices of the conversation trace, damage, concurrency, stopping."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcm.cli.main import main
from kvcm.client.replay import block_content, read_trace
from kvcm.service.testing import ManagerProcess

pytestmark = pytest.mark.integration

SLICE = 300
BYTES = 64


def oracle(limit: int) -> tuple[int, int, int, int]:
    """Blocks, hits, distinct blocks and input tokens of the first requests, with nothing but a set."""
    seen: set[int] = set()
    blocks = hits = tokens = 0
    for request in read_trace("conversation", limit=limit):
        hits += next((at for at, key in enumerate(request.keys) if key not in seen), len(request.keys))
        seen.update(request.keys)
        blocks += len(request.keys)
        tokens += request.input_tokens
    return blocks, hits, len(seen), tokens


def replay(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    target = tmp_path / "result.json"
    target.unlink(missing_ok=True)
    code = main(["replay", "conversation", "--json", str(target), *options])
    return code, json.loads(target.read_text()) if target.exists() else {}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[tuple[ManagerProcess, Path]]:
    """A manager process whose default group stores on a folder of this test, eight blocks a file."""
    root = tmp_path / "blocks"
    quota = {"capacity": 30_000_000_000, "quota_config": []}
    storage = {"type": "file", "global_unique_name": "disk", "storage_spec": {"root_path": f"{root}/", "key_count_per_file": 8}}
    with ManagerProcess({"kvcm.startup_config": str(_startup(tmp_path, storage, quota))}) as process:
        yield process, root


def _startup(folder: Path, storage: dict[str, Any], quota: dict[str, Any]) -> Path:
    from dataclasses import replace

    from kvcm.config.persisted import group_to_dict
    from kvcm.config.startup import default_group

    group = group_to_dict(replace(default_group(), storage_candidates=("disk",)))
    group["quota"] = quota
    path = folder / "startup.json"
    path.write_text(json.dumps({"storage_config": storage, "instance_group": group}))
    return path


def options_for(process: ManagerProcess) -> tuple[str, ...]:
    return ("--manager", process.meta_address, "--metrics-url", f"{process.admin_http_url}/metrics")


def test_INV_T3_a_slice_against_a_manager_of_its_own_equals_the_oracle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    code, result = replay(tmp_path, "--limit", str(SLICE), "--work-dir", str(work))
    blocks, hits, distinct, tokens = oracle(SLICE)

    assert code == 0
    assert (result["total_blocks"], result["hit_blocks"], result["input_tokens"]) == (blocks, hits, tokens)
    assert result["hit_tokens"] == hits * 512
    assert result["bytes_written"] == result["usage_bytes"] == result["stored_bytes"] == distinct * BYTES
    assert result["bytes_verified"] == hits * BYTES
    assert (result["mismatches"], result["problems"]) == (0, [])
    assert result["states"] == {"CLS_SERVING": distinct}
    assert set(result["latencies"]) == {"match", "load", "start", "save", "finish"}
    assert result["latencies"]["match"]["count"] == result["requests"] == SLICE
    assert list(work.iterdir()) == []
    shown = capsys.readouterr()
    assert f"{hits:,}" in shown.out
    assert shown.err == ""


def test_INV_T4_a_running_manager_serves_everything_to_a_second_pass(tmp_path: Path, manager: tuple[ManagerProcess, Path]) -> None:
    process, _ = manager
    blocks, hits, distinct, _tokens = oracle(SLICE)
    first_code, first = replay(tmp_path, "--limit", str(SLICE), *options_for(process))
    again_code, again = replay(tmp_path, "--limit", str(SLICE), *options_for(process))

    assert (first_code, first["hit_blocks"], first["usage_bytes"], first["problems"]) == (0, hits, distinct * BYTES, [])
    assert (again_code, again["hit_blocks"], again["bytes_verified"]) == (0, blocks, blocks * BYTES)
    assert (again["bytes_written"], again["usage_bytes"], again["problems"]) == (0, distinct * BYTES, [])


def test_INV_T4_a_trace_in_two_parts_equals_the_whole(tmp_path: Path, manager: tuple[ManagerProcess, Path]) -> None:
    process, _ = manager
    part = tmp_path / "first.jsonl"
    part.write_text(
        "".join(
            json.dumps({"timestamp": 0, "input_length": len(item.keys) * 512, "output_length": 1, "hash_ids": item.keys}) + "\n"
            for item in read_trace("conversation", limit=100)
        )
    )
    assert main(["replay", str(part), *options_for(process)]) == 0
    code, rest = replay(tmp_path, "--limit", "200", *options_for(process))
    first_pass = oracle(100)

    assert code == 0
    # The first 100 requests come again and hit every block; the others hit as in one run.
    assert rest["hit_blocks"] == first_pass[0] + oracle(200)[1] - first_pass[1]


def test_a_changed_byte_is_a_mismatch_and_exit_code_3(tmp_path: Path, manager: tuple[ManagerProcess, Path], capsys: pytest.CaptureFixture[str]) -> None:
    process, root = manager
    assert replay(tmp_path, "--limit", "20", *options_for(process))[0] == 0
    block = block_content(next(read_trace("conversation")).keys[3], BYTES)
    file = next(path for path in root.rglob("*") if path.is_file() and block in path.read_bytes())
    content = bytearray(file.read_bytes())
    content[content.index(block) + 17] ^= 1
    file.write_bytes(content)
    capsys.readouterr()
    code, result = replay(tmp_path, "--limit", "20", *options_for(process))

    assert code == 3
    uses = sum(next(read_trace("conversation")).keys[3] in item.keys for item in read_trace("conversation", limit=20))
    assert result["mismatches"] == uses >= 1
    assert result["bytes_verified"] == (result["hit_blocks"] - uses) * BYTES
    assert "could not be read back as they were written" in capsys.readouterr().err


def test_a_lost_file_is_a_mismatch_too(tmp_path: Path, manager: tuple[ManagerProcess, Path]) -> None:
    process, root = manager
    assert replay(tmp_path, "--limit", "1", *options_for(process))[0] == 0
    for path in root.rglob("*"):
        if path.is_file() and not path.name.startswith(".kvcm"):
            path.unlink()
    code, result = replay(tmp_path, "--limit", "1", *options_for(process))

    assert code == 3
    assert result["mismatches"] == result["hit_blocks"] == result["total_blocks"] > 1


def test_several_requests_in_flight_lose_hits_at_most(tmp_path: Path) -> None:
    code, result = replay(tmp_path, "--limit", str(SLICE), "--concurrency", "8", "--block-bytes", "5000")
    blocks, hits, distinct, _tokens = oracle(SLICE)

    assert code == 0
    assert result["total_blocks"] == blocks
    assert 0 < result["hit_blocks"] <= hits
    assert result["bytes_verified"] == result["hit_blocks"] * 5000
    assert result["states"] == {"CLS_SERVING": distinct}
    assert result["usage_bytes"] == result["bytes_written"] == distinct * 5000


def test_without_verification_the_bytes_are_only_read(tmp_path: Path) -> None:
    code, result = replay(tmp_path, "--limit", "40", "--verify", "none")
    assert code == 0
    assert (result["bytes_read"], result["bytes_verified"]) == (oracle(40)[1] * BYTES, 0)


def test_other_block_sizes_under_one_instance_are_refused(tmp_path: Path, manager: tuple[ManagerProcess, Path], capsys: pytest.CaptureFixture[str]) -> None:
    process, _ = manager
    assert replay(tmp_path, "--limit", "5", *options_for(process))[0] == 0
    capsys.readouterr()
    code, _ = replay(tmp_path, "--limit", "5", "--block-bytes", "128", *options_for(process))

    assert code == 1
    assert "location_spec_infos" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["127.0.0.1:1, {}", "static://127.0.0.1:1,{}"])
def test_of_several_managers_the_one_that_leads_is_used(tmp_path: Path, manager: tuple[ManagerProcess, Path], form: str) -> None:
    process, _ = manager
    code, result = replay(tmp_path, "--limit", "5", "--manager", form.format(process.meta_address))
    assert (code, result["requests"], result["problems"]) == (0, 5, [])


@pytest.mark.parametrize("wrong", ["nowhere", "", "127.0.0.1:1,", "static://", "dns://"])
def test_what_is_no_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    assert replay(tmp_path, "--limit", "5", "--manager", wrong) == (1, {})
    assert capsys.readouterr().err.startswith("error: ")


def test_a_manager_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = replay(tmp_path, "--limit", "5", "--manager", "127.0.0.1:1", "--timeout", "1")
    error = capsys.readouterr().err

    assert (code, result) == (1, {})
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_replay_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcm.cli.main", "replay", "conversation", "--work-dir", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 30
        while not any(path.is_file() and "kv" in path.parts for path in tmp_path.rglob("*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130
    assert errors == b"stopped\n"
    assert list(tmp_path.iterdir()) == []
