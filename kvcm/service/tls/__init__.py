"""TLS of the listeners: certificates from files, taken over while running."""
