"""Set-up of a machine: uv, the virtual environment, a Docker engine, the base image.

Runs as `python3 -m gateway.bootstrap` before any dependency is there, so it uses the standard library only, and of
Boatyard only `sandbox.state` and `sandbox.volumes`. Each step says in one line what it does and why, and does nothing
where that is already true.
"""

__all__: list[str] = []
