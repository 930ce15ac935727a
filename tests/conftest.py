"""How property tests run: never judged by speed, and in CI always with the same examples, so that a red run can be repeated."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("kvcm", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI")))
settings.load_profile("kvcm")
