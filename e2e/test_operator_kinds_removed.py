"""The definitions of our kinds are deleted while objects of them exist, and come back: neither may wait for the other for ever.

There are no nodes at this level: THE MANAGER IS A LOCAL PROCESS.
"""

from __future__ import annotations

import pytest

from e2e.support.bodies import group, manager, storage
from e2e.support.fixtures import NewOperator
from e2e.support.house import House
from e2e.support.installation import Installation
from kvcm_operator.sight import PATIENCE_S

pytestmark = pytest.mark.e2e

BEGIN_ANEW_S = 75.0
"""On a busy machine: the sweeps that find it, the end of what runs, the start of the new watches, and a pass over everything."""


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
        # The framework may have missed a kind that came back. The operator finds that and watches anew in its process; nothing here restarts it.
        names = ("kvcachemanager/demo", "storage/fast", "instancegroup/chat")
        a_house.wait_ready(*names, seconds=int(PATIENCE_S + BEGIN_ANEW_S))
        assert operator.alive()
