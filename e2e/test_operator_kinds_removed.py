"""The definitions of our kinds are deleted while objects of them exist, and come back: neither may wait for the other for ever.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS.
"""

from __future__ import annotations

import pytest

from e2e.cluster.waiting import eventually
from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewOperator
from e2e.support.house import House
from e2e.support.installation import Installation
from kvcm_operator.health import MAX_WATCH_LAG_S

pytestmark = pytest.mark.e2e


@pytest.mark.xfail(strict=False, reason="known defect: after the kinds come back the operator can stay blind to one of them (docs/known-limits.md)")
def test_the_kinds_go_with_their_objects_and_come_back(a_house: House, installed: Installation, operator_for: NewOperator) -> None:
    """A server hides from discovery that objects of a kind that is going can still be changed, and the framework believes it."""
    bodies = manager(), storage("fast", a_house.root, deletionPolicy="Delete"), group("chat", "fast", deletionPolicy="Delete")
    with operator_for(a_house) as operator:
        a_house.apply(*bodies)
        a_house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
        try:
            installed.undefine()
        finally:
            installed.define()
        assert operator.metric("kvcm_operator_watch_lag_seconds") == 0
        a_house.apply(*bodies)

        def ready() -> bool:
            # The framework may have missed a kind that came back; then the probe says so, and whoever runs the operator starts it again.
            if not operator.alive():
                operator.kill()
                operator.start()
            return all(a_house.condition(kind, name).get("status") == "True" for kind, name in (("Storage", "fast"), ("InstanceGroup", "chat")))

        eventually(ready, "the operator works with the kinds again, if need be after its liveness probe has failed", seconds=MAX_WATCH_LAG_S + 60)
        a_house.wait_ready("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
