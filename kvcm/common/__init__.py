"""Building blocks that every layer may use: errors, clock, ids, URIs. Imports nothing else of ours."""
