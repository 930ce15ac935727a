"""Two resources for one thing on the server: the oldest has it, the others may neither change nor delete it.

Danger: the answer must not move while nothing relevant changes, or two resources would overwrite each other in turns. It depends on creation
times and uids alone; a resource keeps its claim while it is invalid or being deleted, and gives it up when it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcm_operator.subject import Subject
from kvcm_operator.world import Json


def rival(subject: Subject, siblings: Iterable[Json]) -> Subject | None:
    """The older resource of the same kind and manager that describes the same name, if there is one. `siblings` may contain the subject itself."""
    older = [
        other
        for other in (Subject(body) for body in siblings)
        if other.uid != subject.uid and other.manager_name == subject.manager_name and other.server_name == subject.server_name and other.age < subject.age
    ]
    return min(older, key=lambda other: other.age, default=None)


def server_names(storages: Iterable[Json], manager: str) -> dict[str, str]:
    """Names of Storage resources of one manager -> their names on the server."""
    return {subject.ref.name: subject.server_name for subject in map(Subject, storages) if subject.manager_name == manager}
