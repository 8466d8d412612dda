"""Set-up of a machine: uv, the virtual environment, a Docker engine, the base image.

Runs as `python3 -m gateway.bootstrap` before any dependency is there, so it is the standard library only and imports
nothing else of Boatyard. Each step says in one line what it does and why, and does nothing where that is already true.
"""

__all__: list[str] = []
