"""What a manager tells about itself, asked through its admin API."""

from __future__ import annotations

from dataclasses import dataclass

from kvcm_operator.admin import AdminTrouble, Silent, Speaker
from kvcm_operator.gate import admin_port
from kvcm_operator.subject import Subject
from kvcm_operator.world import World


@dataclass(frozen=True, slots=True)
class Serving:
    """`healthy`: it says that it serves, None when it does not answer, and `why` not. `epoch`: of the leader, 0 when unknown.

    The counts are None when a manager does not tell.
    """

    healthy: bool | None
    leader: str = ""
    epoch: int = 0
    storages: int | None = None
    groups: int | None = None
    instances: int | None = None
    why: str = "the manager does not answer on its admin port"


SILENT = Serving(None)


async def ask(subject: Subject, world: World) -> Serving:
    try:
        async with world.admin.connect(subject.ref.namespace, subject.ref.name, admin_port(subject)) as api:
            return await _ask(Speaker(api))
    except Silent as error:
        return Serving(None, why=error.message)
    except AdminTrouble:
        return SILENT


async def _ask(speaker: Speaker) -> Serving:
    if not await speaker.serves():
        return Serving(False)
    cluster = await speaker.cluster()
    groups = list((await speaker.groups()).values())
    told = all(view.usage is not None for view in groups)
    return Serving(
        healthy=True,
        leader=cluster.leader_node_id,
        epoch=cluster.leader_epoch,
        storages=len(await speaker.storages()),
        groups=len(groups),
        instances=sum(view.usage.instances for view in groups if view.usage is not None) if told else None,
    )
