"""The harness: the loop, its tools, policy, context and models. Knows no HTTP, no SQL and no Docker."""

__all__: list[str] = []
