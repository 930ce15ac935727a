"""The cache manager: reads, two-phase writes, deletion. Pure domain code on one event loop (design D1)."""
