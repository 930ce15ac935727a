"""Wire contract: .proto files, generated code, codecs between proto, JSON and domain."""
