"""Where a guest can be started: one package or file per kind of place."""

__all__: list[str] = []
