"""Faults on real processes: three managers, etcd and Redis, a load, and a checker that remembers what was promised. `python -m faults --help`.

Not part of the product and never installed; docs/high-availability.md says what comes out.
"""
