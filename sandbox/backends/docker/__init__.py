"""Sandboxes as containers of a Docker engine, and the images they start from."""

__all__: list[str] = []
