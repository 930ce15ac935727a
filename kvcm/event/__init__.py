"""Events of the manager and their publishers."""
