"""glibc's allocator for a server that sends replies of a few hundred kilobytes.

By default glibc takes every block of 128 KiB and more from the kernel and gives it straight back: each reply of a thousand locations would cost an
mmap, a page fault per 4 KiB and a munmap. With these values such blocks come from the heap. Linux with glibc only; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Larger blocks (tables of the index) are still mapped, so that their memory goes back when they are replaced.
_MMAP_BYTES = 1 << 20
_TRIM_BYTES = 8 << 20


def tune_malloc() -> bool:
    """Call it once at the start of the process; returns whether it took effect."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))
