"""The Kubernetes operator of KVCM: three kinds of custom resources become running managers with a registry that matches.

Read `world.py` (what a pass may touch), then `reconcile_*.py`. Start it with `kvcm-operator`, or with `kopf run -m kvcm_operator`.
"""

from __future__ import annotations

import sys

# Only kopf's command line imports this package for its handlers; everybody else wants one of the modules, and no framework.
if "kopf.cli" in sys.modules:
    from kvcm_operator.main import register_default

    register_default()
