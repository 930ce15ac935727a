"""ManagerClient: one object for an engine process, with the half or halves that its role needs.

    role         metadata half (MetaClient)      transfer half (TransferClient)
    SCHEDULER    yes                             no
    WORKER       no                              yes, with `storage_configs` from a scheduler
    HYBRID       yes                             yes, with the stores the manager named at registration

Asking for the missing half raises ClientNotExists (15). `write_blocks` and `read_prefix` do the whole dance for a hybrid client of an instance
with one spec; engines with several ranks use the halves themselves, because a session and a checksum cover all specs of a block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvcm.client.config import ClientConfig, InitParams
from kvcm.client.errors import ClientError, ClientNotExists, InvalidCall
from kvcm.client.meta_client import MetaClient
from kvcm.client.meta_client_async import AsyncMetaClient
from kvcm.client.transfer import TransferClient
from kvcm.client.types import BlockBuffer, BlockMask, QueryType, RoleType, SaveResult, WriteLocation


class ManagerClient:
    """Blocking and thread-safe. Use `create`."""

    def __init__(self, config: ClientConfig, meta: MetaClient | None, transfer: TransferClient | None) -> None:
        self._specs = tuple(config.location_spec_infos)
        self._meta = meta
        self._transfer = transfer

    @classmethod
    def create(cls, config: ClientConfig | str | Mapping[str, Any], params: InitParams, *, now: Callable[[], float] = time.monotonic) -> ManagerClient:
        """Check everything, connect and register (SCHEDULER, HYBRID), and open the stores (WORKER, HYBRID). Raises a ClientError."""
        config = _checked(config, params)
        meta = MetaClient.connect(config, now=now) if params.role_type & RoleType.SCHEDULER else None
        try:
            transfer = _transfer(config, params, meta.get_storage_config() if meta else "", now)
        except BaseException:
            if meta is not None:
                meta.close()
            raise
        return cls(config, meta, transfer)

    def __enter__(self) -> ManagerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both halves. Safe to call twice."""
        if self._transfer is not None:
            self._transfer.close()
        if self._meta is not None:
            self._meta.close()

    @property
    def meta(self) -> MetaClient:
        """The metadata half. Raises ClientNotExists for a worker."""
        if self._meta is None:
            raise _missing("metadata")
        return self._meta

    @property
    def transfer(self) -> TransferClient:
        """The transfer half. Raises ClientNotExists for a scheduler."""
        if self._transfer is None:
            raise _missing("transfer")
        return self._transfer

    def write_blocks(self, keys: Sequence[int], blocks: Sequence[BlockBuffer], *, write_timeout_seconds: int = 60) -> int:
        """Store the blocks that are not stored yet; returns how many were written.

        All or nothing for the new blocks: if saving fails, the session is finished with no success (as far as the manager can still be
        reached) and the error is raised.
        """
        meta, transfer = self.meta, self.transfer
        spec_name = self._only_spec(keys, blocks)
        session = meta.start_write(keys, write_timeout_seconds=write_timeout_seconds)
        uris = [location.uri(spec_name) for location in session.locations]
        checksums: tuple[int, ...] = ()
        if uris:
            try:
                buffers = [blocks[index] for index in session.block_mask.open_indexes(len(blocks))]
                checksums = transfer.save_kv_caches(uris, buffers).checksums
            except BaseException:
                _give_up(meta, session)
                raise
        meta.finish_write(session.write_session_id, BlockMask(offset=len(uris)), checksums=checksums)
        return len(uris)

    def read_prefix(self, keys: Sequence[int], buffers: Sequence[BlockBuffer]) -> int:
        """Load the longest stored prefix of `keys` into the first buffers, verifying checksums; returns its length in blocks."""
        meta, transfer = self.meta, self.transfer
        spec_name = self._only_spec(keys, buffers)
        found = meta.match_location(QueryType.PREFIX_MATCH, keys, want_checksums=True)
        uris = [location.uri(spec_name) for location in found.locations]
        if uris:
            transfer.load_kv_caches(uris, buffers[: len(uris)], expected_checksums=found.checksums)
        return len(uris)

    def _only_spec(self, keys: Sequence[int], blocks: Sequence[BlockBuffer]) -> str:
        if len(self._specs) != 1:
            raise InvalidCall("this convenience works only for an instance with exactly one location spec")
        if not keys or len(keys) != len(blocks):
            raise InvalidCall(f"one buffer for each key and at least one are needed; got {len(keys)} keys and {len(blocks)} buffers")
        return self._specs[0]


class AsyncManagerClient:
    """The same on an asyncio loop: calls await, bytes move in the transfer half's own threads. Use `create`."""

    def __init__(self, meta: AsyncMetaClient | None, transfer: TransferClient | None) -> None:
        self._meta = meta
        self._transfer = transfer

    @classmethod
    async def create(
        cls, config: ClientConfig | str | Mapping[str, Any], params: InitParams, *, now: Callable[[], float] = time.monotonic
    ) -> AsyncManagerClient:
        """As `ManagerClient.create`."""
        config = _checked(config, params)
        meta = await AsyncMetaClient.connect(config, now=now) if params.role_type & RoleType.SCHEDULER else None
        try:
            transfer = _transfer(config, params, meta.get_storage_config() if meta else "", now)
        except BaseException:
            if meta is not None:
                await meta.close()
            raise
        return cls(meta, transfer)

    async def __aenter__(self) -> AsyncManagerClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close both halves without waiting for transfers that still run. Safe to call twice."""
        if self._transfer is not None:
            self._transfer.close(wait_s=0)
        if self._meta is not None:
            await self._meta.close()

    @property
    def meta(self) -> AsyncMetaClient:
        """The metadata half. Raises ClientNotExists for a worker."""
        if self._meta is None:
            raise _missing("metadata")
        return self._meta

    async def save_kv_caches(self, uris: Sequence[str], buffers: Sequence[BlockBuffer], *, deadline_s: float | None = None) -> SaveResult:
        """As `TransferClient.save_kv_caches`."""
        if self._transfer is None:
            raise _missing("transfer")
        return await self._transfer.save_kv_caches_async(uris, buffers, deadline_s=deadline_s)

    async def load_kv_caches(
        self,
        uris: Sequence[str],
        buffers: Sequence[BlockBuffer],
        *,
        expected_checksums: Sequence[int] | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """As `TransferClient.load_kv_caches`."""
        if self._transfer is None:
            raise _missing("transfer")
        await self._transfer.load_kv_caches_async(uris, buffers, expected_checksums=expected_checksums, deadline_s=deadline_s)


def _checked(config: ClientConfig | str | Mapping[str, Any], params: InitParams) -> ClientConfig:
    parsed = config if isinstance(config, ClientConfig) else ClientConfig.parse(config)
    params.check(parsed)
    if params.role_type & RoleType.SCHEDULER:
        parsed.require_addresses()
    return parsed


def _transfer(config: ClientConfig, params: InitParams, from_manager: str, now: Callable[[], float]) -> TransferClient | None:
    if not params.role_type & RoleType.WORKER:
        return None
    return TransferClient(from_manager, config.sdk, instance_id=config.instance_id, extra_storage_configs=params.storage_configs, now=now)


def _missing(half: str) -> ClientNotExists:
    return ClientNotExists(f"this client has no {half} half; its role does not include it")


def _give_up(meta: MetaClient, session: WriteLocation) -> None:
    """Best effort: without it the session expires by itself."""
    try:
        meta.finish_write(session.write_session_id, BlockMask(offset=0))
    except ClientError:
        pass
