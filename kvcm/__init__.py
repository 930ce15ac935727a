"""KVCM: a global metadata service for LLM key/value cache blocks.

The public surface for users is `kvcm.client` (SDK) and the `kvcm` command; every other package is internal and may change.
"""

__version__ = "0.1.0"
