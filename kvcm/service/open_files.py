"""How many files and sockets the process may have open, and how many of them each listener may take.

Danger: a process without file descriptors accepts nothing and writes nothing, so connections must run into limits of their own long before.
"""

from __future__ import annotations

import resource


def raise_limit() -> None:
    """Use what the system allows this process; the soft limit is often 1024 for the sake of old programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def share(parts: int, most: int) -> int:
    """The `parts`-th part of the limit, at least 16 and never more than `most`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(16, soft // parts))
