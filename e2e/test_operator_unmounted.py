"""A storage's root vanishes from under the manager, as an unmounted NFS does: the status says so and nothing is deleted.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS, and the mount is a folder that is moved away and back.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.waiting import eventually
from e2e.support.blocks import engine
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewOperator
from e2e.support.house import House
from e2e.support.kube import Kube
from e2e.support.record import Record
from kvcm.client.errors import ServiceIo
from kvcm.data_storage.sentinel import SENTINEL_NAME

pytestmark = pytest.mark.e2e

_UNPROVEN = "kvcm_deleter_unproven_counter"


def test_an_unmounted_root_is_told_and_nothing_is_deleted(a_house: House, admin_kube: Kube, operator_for: NewOperator) -> None:
    root, aside = a_house.root / "mount", a_house.root / "aside"
    root.mkdir()
    with operator_for(a_house) as operator, Record(admin_kube, [a_house.namespace]) as record:
        a_house.apply(manager(), storage("fast", root), group("chat", "fast", reclaim={"delayBeforeDelete": "0s"}))
        a_house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
        assert a_house.body("Storage", "fast")["status"]["rootVerified"] is True
        with engine(a_house.manager.meta_address, "chat") as client:
            assert client.write(1, 2, 3, 4) == 4
            files = _files(root)

            root.rename(aside)
            root.mkdir()  # what is left of a mount: an empty folder
            eventually(lambda: a_house.body("Storage", "fast")["status"]["rootVerified"] is False, "the status says that the root is another")
            assert a_house.reason("Storage", "fast") == "RootNotVerified"
            assert a_house.condition("Storage", "fast", "Stalled")["status"] == "False"
            assert a_house.body("Storage", "fast")["status"]["registered"] is True
            client.remove(4)  # a removal that is asked for has to wait, too
            with pytest.raises(ServiceIo):
                client.read(1)  # refused, which is not the same as "not there"
            eventually(lambda: a_house.metric(_UNPROVEN) > 0, "the manager has tried to delete and found no proof")
            assert _files(aside) == files
            assert list(root.iterdir()) == [], "nothing may be written where the mount should be, least of all a new mark"
            assert "fast" in a_house.storages()
            assert a_house.condition("InstanceGroup", "chat")["status"] == "True"

            root.rmdir()
            aside.rename(root)
            a_house.wait_ready("storage/fast")
            assert a_house.body("Storage", "fast")["status"]["rootVerified"] is True
            assert client.read(1, 2, 3) == 3
            eventually(lambda: len(_files(root)) == len(files) - 1, "the removal that waited is done")
        record.caught_up()
        assert record.problems(dips=1) == []
        assert record.states("Storage", "fast") == ["InProgress", "Current", "InProgress", "Current"]
        assert len(a_house.events("RootNotVerified", "fast")) == 1
        assert operator.metric("kvcm_operator_drift_corrections_total") == 0


def test_a_lost_mark_alone_stops_deleting(a_house: House, operator_for: NewOperator) -> None:
    """Only the mark is gone: what is below may be somebody else's by now."""
    with operator_for(a_house):
        a_house.apply(manager(), storage("fast", a_house.root), group("chat", "fast", reclaim={"delayBeforeDelete": "0s"}))
        a_house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
        with engine(a_house.manager.meta_address, "chat") as client:
            assert client.write(1, 2) == 2
            blocks = _files(a_house.root)
            (a_house.root / SENTINEL_NAME).unlink()
            eventually(lambda: a_house.reason("Storage", "fast") == "RootNotVerified", "the status says that the mark is gone")
            client.remove(1)
            eventually(lambda: a_house.metric(_UNPROVEN) > 0, "the manager has tried to delete and found no proof")
            assert _files(a_house.root) == blocks


def _files(root: Path) -> set[Path]:
    """The files of blocks, relative to the root."""
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.name != SENTINEL_NAME}
