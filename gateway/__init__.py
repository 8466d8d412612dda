"""The edge: HTTP, storage, the pool, the command line. The only place where the parts are wired together."""

__all__: list[str] = []
