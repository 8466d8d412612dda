"""Our end of a guest stream: a link with its channels, and the `Sandbox` made of them."""

__all__: list[str] = []
