"""A process on the host by asyncio: no sandbox at all, the floor."""

import asyncio


async def spawn(*command: str) -> None:
    """Started and waited for, its output collected, as ours is."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    await process.communicate()


async def spawn_bare(*command: str) -> None:
    """Started and waited for, nothing more: no pipe, nothing read."""
    process = await asyncio.create_subprocess_exec(*command)
    await process.wait()
