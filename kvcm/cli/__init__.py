"""The `kvcm` command."""

import os

# gRPC reads it when it is imported, long before any of our code could say so. Its own lines hold bytes from strangers as they came, line ends included.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
