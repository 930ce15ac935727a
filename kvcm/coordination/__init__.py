"""Who leads: the coordinator port, its implementations and the leader elector."""
