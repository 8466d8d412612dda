"""Work that has to be finished though whoever waits for it is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, which must bound its own time, to its end however often we are cancelled; then that is raised."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # nobody will ask for it any more
    raise cancelled
