"""Stores that hold the KV bytes: allocation of places, probes, proven deletion. Bytes themselves never pass through this process."""
