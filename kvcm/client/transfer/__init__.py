"""The data plane: engine memory <-> storage. Never goes through the manager, never imports gRPC."""

from kvcm.client.transfer.checksum import block_checksum
from kvcm.client.transfer.client import TransferClient

__all__ = ["TransferClient", "block_checksum"]
