"""`python -m kvcm_operator` is `kvcm-operator`."""

from __future__ import annotations

from kvcm_operator.main import main

if __name__ == "__main__":
    main()
