"""Meta and Admin services and their transports; `server.py` is the one place that wires everything."""
