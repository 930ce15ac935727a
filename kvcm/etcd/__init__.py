"""A small asyncio client for etcd v3 over grpc.aio: plain types outside, etcd's messages under a package name of our own inside."""
