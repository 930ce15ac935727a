"""The JSON dialect of the HTTP API: the one import for services and clients.

Output follows wire contract 3.3 (`json_writer`), input 3.4 (`json_reader`). It is not the persisted dialect, which lives in
`kvcm.config.persisted` and knows nothing of protobuf.
"""

from __future__ import annotations

from kvcm.protocol.json_reader import MAX_DEPTH, JsonBodyError, json_to_message
from kvcm.protocol.json_writer import message_to_json, message_to_plain

__all__ = ["MAX_DEPTH", "JsonBodyError", "json_to_message", "message_to_json", "message_to_plain"]
