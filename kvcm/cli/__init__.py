"""The `kvcm` command."""
