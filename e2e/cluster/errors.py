"""What the test bed says when it cannot go on."""

from __future__ import annotations


class BedError(Exception):
    """A plain sentence for the person who runs the tests."""
