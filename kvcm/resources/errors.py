"""Errors of resource files.

    InvalidArgument
    └── ResourceError         one or more problems, each naming a place (file, document, field) and what to do
    Unsupported
    └── UnsupportedResource   a valid resource of a kind that this version does not serve

Neither ever repeats a whole document or a value that may be secret: only paths, names of fields and allowed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcm.common.errors import InvalidArgument, Unsupported

MAX_PROBLEMS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at one place. `where` is a file with its document, `path` a field such as `spec.nfs.rootPath`; both may be empty."""

    sentence: str
    path: str = ""
    where: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.path, self.sentence) if part)

    def at(self, where: str) -> Problem:
        return Problem(self.sentence, self.path, where)


class ResourceError(InvalidArgument):
    """The resources cannot be applied as they are; `problems` lists every reason that was found, at most `MAX_PROBLEMS_SHOWN` are printed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        if not problems:
            raise ValueError("an error without a problem")
        shown = [str(problem) for problem in problems[:MAX_PROBLEMS_SHOWN]]
        if len(problems) > MAX_PROBLEMS_SHOWN:
            shown.append(f"and {len(problems) - MAX_PROBLEMS_SHOWN} more problems")
        super().__init__("\n".join(shown))
        self.problems = tuple(problems)


class UnsupportedResource(Unsupported):
    """The resource is valid, but what it asks for is not built in this version."""
