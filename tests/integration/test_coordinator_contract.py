"""The contract of coordinators (kvcm.coordination.testing_contract) against every implementation, with real stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcm.coordination.testing_contract import cases_for, run_case
from kvcm.coordination.testing_place import FilePlace, MemoryPlace, Place

pytestmark = pytest.mark.integration

PLACES: dict[str, Callable[[], Place]] = {"memory": MemoryPlace, "file": FilePlace}


@pytest.mark.parametrize(("where", "case"), [(where, case) for where, make in PLACES.items() for case in cases_for(make().abilities)])
def test_contract(where: str, case: str) -> None:
    run_case(case, PLACES[where]())
