"""The name by which stores tell this process from every other one that writes to them."""

from __future__ import annotations

import secrets
from typing import Final

THIS_PROCESS: Final = secrets.token_hex(4).encode()
"""8 bytes, as long as a fence in Redis has room for. Drawn anew by each process, so that a restarted one is another."""
