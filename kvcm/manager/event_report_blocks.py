"""How reports change one block. Pure: a block, what is wanted, and the roster that knows whose copies are whose. All state changes are `kvcm.meta.location`'s.

Copies that nobody knows any more (garbage) go whenever a block is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvcm.common.errors import CapacityReached
from kvcm.manager.event_report_events import MAX_SPECS, Add, versioned
from kvcm.manager.event_report_roster import Reporter, Roster, Source
from kvcm.manager.ports import WireCodec
from kvcm.meta.location import Block, Location, replace, report, retract, revise


def without_garbage(block: Block, roster: Roster) -> Block:
    for location in block:
        if roster.is_garbage(location):
            block = retract(block, location)
    return block


def changed_block(
    block: Block,
    wanted: Mapping[str, Mapping[str, str | None]],
    roster: Roster,
    reporter: Reporter,
    codec: WireCodec,
    version: str,
    slot: int,
    now_us: int,
) -> Block:
    """The block after changes of one reporter: medium -> spec name -> URI or None (removed). Raises CapacityReached."""
    block = without_garbage(block, roster)
    for medium, changes in wanted.items():
        source = reporter.sources.get(medium)
        old = _copy_of(block, source) if source is not None else None
        specs = dict(codec.decode(old.wire)[1]) if old is not None else {}
        for name, uri in changes.items():
            if uri is None:
                specs.pop(name, None)
            else:
                specs[name] = versioned(uri, version)
        if not specs:
            block = retract(block, old) if old is not None else block
            continue
        if len(specs) > MAX_SPECS:
            raise CapacityReached(f"a reported block may have at most {MAX_SPECS} specs")
        wire = codec.encode(int(reporter.kind), list(specs.items()))
        source = source or roster.source(reporter, medium)
        if old is None:
            block = (*block, report(type_code=int(reporter.kind), storage_slot=slot, create_time_us=now_us, handle=source.handle, wire=wire))
        elif old.wire != wire:
            block = replace(block, old, revise(old, source.handle, wire)) or block
    return block


def taken_over(
    block: Block,
    wanted: Sequence[Add],
    roster: Roster,
    reporter: Reporter,
    codec: WireCodec,
    version: str,
    slot: int,
    now_us: int,
) -> tuple[Block, list[Location]]:
    """The block with a snapshot's copies in it, in place of the reporter's copies of the same mediums; and all its copies from before, for `put_back`."""
    before = [location for location in block if (known := roster.source_of(location)) is not None and known.reporter is reporter and known.current]
    block = without_garbage(block, roster)
    for item in wanted:
        old = next((location for location in before if (known := roster.source_of(location)) is not None and known.medium == item.medium), None)
        wire = codec.encode(int(reporter.kind), [(name, versioned(uri, version)) for name, uri in item.specs])
        handle = roster.pending_source(reporter, item.medium).handle
        if old is None:
            block = (*block, report(type_code=int(reporter.kind), storage_slot=slot, create_time_us=now_us, handle=handle, wire=wire))
        else:
            block = replace(block, old, revise(old, handle, wire, shown=True)) or block
    return block, before


def put_back(block: Block, before: Sequence[Location], roster: Roster) -> Block | None:
    """The block with the copies that an aborted snapshot had taken over. A copy that was taken out meanwhile stays out."""
    for old in before:
        known = roster.source_of(old)
        if known is None or old in block:
            continue
        new = next((location for location in block if _took_over(roster.source_of(location), known)), None)
        if new is not None:
            block = replace(block, new, revise(new, old.raw_id, old.wire)) or block
    return block


def _copy_of(block: Block, source: Source) -> Location | None:
    return next((location for location in block if location.raw_id == source.handle), None)


def _took_over(new: Source | None, old: Source) -> bool:
    return new is not None and new.reporter is old.reporter and new.medium == old.medium and not new.current
