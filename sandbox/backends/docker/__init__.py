"""Sandboxes on a Docker engine."""

from sandbox.backends.docker.backend import DockerBackend

__all__ = ["DockerBackend"]
