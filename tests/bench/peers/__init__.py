"""What we measure ourselves against."""

__all__: list[str] = []
