"""The test bed: a real Kubernetes, made on this machine, for the end-to-end tests.

`python -m e2e.cluster --help` lists what it does; README.md beside this file says how it works and what it changes.
"""
