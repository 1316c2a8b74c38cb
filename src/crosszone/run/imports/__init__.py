"""Environments from elsewhere: a YAML list, an ssh config, a Slurm cluster, a Kubernetes cluster.

Each file has one function that returns environments by id; nothing is kept until the caller registers them.
"""
