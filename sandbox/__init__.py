"""Isolated execution: the protocol, the guest that runs inside, and the backends. Knows nothing of agents or HTTP."""

__all__: list[str] = []
