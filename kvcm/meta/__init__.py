"""Block metadata: the location state machine, the index of one instance, metadata backends, recovery."""
