"""gRPC: services behind grpc.aio."""
