"""A small Redis client of our own on hiredis: pipelined connections whose unknown outcomes can be resolved (see `fenced`). Needs the extra `kvcm[redis]`."""
