"""What rows are given: sandboxes, plain containers and peers, each made when first asked for and gone at the end."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from rich.console import Console

from sandbox.backends.docker import DockerBackend
from sandbox.client.sandbox import GuestSandbox
from sandbox.types import SandboxSpec
from tests.bench.peers.sdk import PlainContainer, Sdk
from tests.bench.peers.swe_rex import SweRex
from tests.bench.row import NotMeasured

T = TypeVar("T")

RUN_LABEL = "bench"
ORPHAN_AFTER_S = 60.0
"""A run that is killed with SIGKILL leaves sandboxes behind; they end themselves after so long."""


class Bench:
    """Made by `open`."""

    def __init__(self, backend: DockerBackend, sdk: Sdk, stack: contextlib.AsyncExitStack, *, quick: bool) -> None:
        self.backend = backend
        self.sdk = sdk
        self.quick = quick
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._stack = stack
        self._begun = time.monotonic()
        self._sandbox: GuestSandbox | None = None
        self._plain: PlainContainer | None = None
        self._swe_rex: SweRex | None = None
        self._no_swe_rex = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, *, quick: bool) -> AsyncGenerator["Bench"]:
        run = f"{os.getpid()}-{os.urandom(3).hex()}"
        async with DockerBackend.open() as backend, contextlib.AsyncExitStack() as stack:
            sdk = Sdk(backend.engine.host, label=run)
            stack.callback(sdk.close)
            stack.push_async_callback(asyncio.to_thread, sdk.remove_all)
            yield cls(backend, sdk, stack, quick=quick)

    def n(self, times: int, *, quick: int | None = None) -> int:
        """How often to measure: `times`, or a quarter of it (or `quick`) in a quick run."""
        return times if not self.quick else quick or max(times // 4, 2)

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/]  {text}")

    def spec(self) -> SandboxSpec:
        return SandboxSpec(labels={RUN_LABEL: self.sdk.label}, orphan_after_s=ORPHAN_AFTER_S)

    async def fresh_sandbox(self) -> GuestSandbox:
        """A new one, for who enters it and so ends it."""
        return await self.backend.create(self.spec())

    async def sandbox(self) -> GuestSandbox:
        """The one that most rows share."""
        if self._sandbox is None:
            self._sandbox = await self._stack.enter_async_context(await self.fresh_sandbox())
        return self._sandbox

    async def image(self) -> str:
        """The id of the image that our sandboxes are made of."""
        return await asyncio.to_thread(self.sdk.image_of, (await self.sandbox()).id)

    async def plain(self) -> PlainContainer:
        """A writable container of the same image, as anybody would start it."""
        if self._plain is None:
            self._plain = await asyncio.to_thread(self.sdk.plain, await self.image())
        return self._plain

    async def swe_rex(self) -> SweRex:
        """Raises: NotMeasured, again and again once it failed."""
        if self._no_swe_rex:
            raise NotMeasured(self._no_swe_rex)
        if self._swe_rex is None:
            python = (await self.sandbox()).welcome.python[:2]
            image = await self.image()
            try:
                opened = SweRex.open(self.sdk, image, python=python, say=self.say)
                self._swe_rex = await self._stack.enter_async_context(opened)
            except NotMeasured as error:
                self._no_swe_rex = str(error)
                raise
        return self._swe_rex


def in_thread(call: Callable[[], T]) -> Callable[[], "asyncio.Future[T]"]:
    """A blocking call of a peer's, for our event loop: its keep-alive must go on."""
    return lambda: asyncio.ensure_future(asyncio.to_thread(call))
