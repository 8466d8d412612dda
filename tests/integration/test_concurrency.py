"""Many at once, terminals, and what is fed into a command."""

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable

import pytest

from sandbox.backends.docker import DockerBackend
from sandbox.client.sandbox import GuestSandbox
from sandbox.errors import CommandNotFound, NotSupported, ProcessEnded
from sandbox.protocol import OutputChunk, Process
from sandbox.types import MIB, Reason, SandboxSpec, TerminalSize
from tests.integration.peers import within

pytestmark = pytest.mark.docker

# Many at once


async def says_its_own(sandbox: GuestSandbox, token: str) -> None:
    """Output, error output, input and exit code each carry something of this command's alone."""
    code = int(hashlib.sha256(token.encode()).hexdigest()[:8], 16) % 200
    script = f'read line; echo "$line" "$TOKEN"; echo {token} >&2; seq 500 | sed s/^/{token}:/; exit {code}'
    result = await sandbox.execute(script, env={"TOKEN": token}, stdin=f"in {token}\n".encode(), separate=True)
    expected = f"in {token} {token}\n" + "".join(f"{token}:{number}\n" for number in range(1, 501))
    assert (result.exit_code, result.reason) == (code, Reason.EXITED)
    assert result.stdout.head.decode() == expected
    assert result.stderr.head.decode() == f"{token}\n"


@within(30)
async def test_64_commands_at_once(sandbox: GuestSandbox) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(64):
            group.create_task(says_its_own(sandbox, f"t{number}"))


@within(30)
async def test_64_commands_that_run_at_the_same_time(sandbox: GuestSandbox) -> None:
    """None ends before all have begun: each waits for a line."""
    processes = [await sandbox.start(f"echo {n}; read line; echo $line {n}; exit {n}", stdin=True) for n in range(64)]
    outputs = [process.output() for process in processes]
    for number, output in enumerate(outputs):
        assert (await anext(output)).data == b"%d\n" % number
    assert sum(info.running for info in await sandbox.processes()) == 64
    for number, process in enumerate(processes):
        await process.write_stdin(b"line %d\n" % (64 - number))
    for number, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        assert b"".join([chunk.data async for chunk in output]) == b"line %d %d\n" % (64 - number, number)
        assert (await process.wait()).exit_code == number
        await process.detach()


@within(60)
async def test_eight_sandboxes_with_eight_commands_each(
    docker_backend: DockerBackend, spec: Callable[..., SandboxSpec]
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        sandboxes = await asyncio.gather(*[docker_backend.create(spec()) for _ in range(8)])
        for sandbox in sandboxes:
            await stack.enter_async_context(sandbox)
        async with asyncio.TaskGroup() as group:
            for at, sandbox in enumerate(sandboxes):
                for number in range(8):
                    group.create_task(says_its_own(sandbox, f"s{at}n{number}"))
                    group.create_task(sandbox.write(f"file-{number}", f"{at} {number}".encode()))
        for at, sandbox in enumerate(sandboxes):
            assert [info.path.name for info in await sandbox.ls()] == [f"file-{number}" for number in range(8)]
            assert await sandbox.read("file-3") == f"{at} 3".encode()


@within(60)
async def test_300_at_once_queue_and_all_succeed(sandbox: GuestSandbox) -> None:
    async def echo(number: int) -> None:
        assert (await sandbox.execute(f"sleep 0.2; echo {number}")).stdout.head == b"%d\n" % number

    async with asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(echo(number))


@within(30)
async def test_small_requests_get_through_while_300_commands_wait(sandbox: GuestSandbox) -> None:
    waiting = [asyncio.create_task(sandbox.execute(["sleep", "1000"])) for _ in range(300)]
    async with asyncio.timeout(10):
        while sum(info.running for info in await sandbox.processes()) < 200:
            pass
        await sandbox.mkdir("made")
        assert (await sandbox.stat("made")).path.name == "made"
        await sandbox.move("made", "moved")
    for task in waiting:
        task.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*waiting, return_exceptions=True)
    )
    assert await sandbox.processes() == []


@within(30)
async def test_commands_that_cannot_start_use_nothing_up(sandbox: GuestSandbox) -> None:
    for _ in range(600):
        with pytest.raises(CommandNotFound):
            await sandbox.start(["no-such-command"])
    assert (await sandbox.execute("ls /proc/self/fd | wc -l")).ok


# Terminals


class Screen:
    """Reads a terminal until it shows what is expected."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._chunks: AsyncIterator[OutputChunk] = process.output()
        self._text = ""

    async def until(self, pattern: str) -> "re.Match[str]":
        """Waits for `pattern` in what came since the last match."""
        try:
            async with asyncio.timeout(10):
                while (match := re.search(pattern, self._text)) is None:
                    self._text += (await anext(self._chunks)).data.decode()
        except (StopAsyncIteration, TimeoutError) as error:
            raise AssertionError(f"{type(error).__name__} without {pattern!r} in {self._text!r}") from None
        self._text = self._text[match.end() :]
        return match

    async def rest(self) -> str:
        return self._text + b"".join([chunk.data async for chunk in self._chunks]).decode()

    async def type(self, text: str) -> None:
        await self.process.write_stdin(text.encode())


async def shell(sandbox: GuestSandbox) -> Screen:
    process = await sandbox.start(
        ["bash", "--norc", "-i"], tty=TerminalSize(rows=30, cols=100), env={"PS1": "ready> ", "TERM": "dumb"}
    )
    screen = Screen(process)
    await screen.until("ready> ")
    return screen


@within(30)
async def test_terminal_runs_an_interactive_shell(shared_sandbox: GuestSandbox) -> None:
    screen = await shell(shared_sandbox)
    await screen.type("echo $((6 * 7)); tty; stty size\n")
    await screen.until(r"echo \$\(\(6 \* 7\)\)")
    await screen.until("\n42\r\n/dev/pts/\\d+\r\n30 100\r\nready> ")
    await screen.type("no-such-command\n")
    await screen.until("command not found")
    [info] = [info for info in await shared_sandbox.processes() if info.id == screen.process.id]
    assert (info.tty, info.running) == (True, True)
    await screen.type("exit 5\n")
    result = await screen.process.wait()
    assert (result.reason, result.exit_code) == (Reason.EXITED, 5)
    await screen.process.detach()


@within(30)
async def test_resize_is_seen(shared_sandbox: GuestSandbox) -> None:
    screen = await shell(shared_sandbox)
    await screen.process.resize(TerminalSize(rows=50, cols=132))
    await screen.type("stty size\n")
    await screen.until("\n50 132\r\n")
    await screen.process.kill()
    await screen.process.detach()

    script = "import os, signal\nsignal.signal(signal.SIGWINCH, lambda *_: None)\n"
    script += "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\nos.write(1, b'ready')\n"
    script += "signal.sigwait([signal.SIGWINCH])\nprint(os.get_terminal_size())"
    screen = Screen(await shared_sandbox.start(["python3", "-c", script], tty=TerminalSize(rows=24, cols=80)))
    await screen.until("ready")
    await screen.process.resize(TerminalSize(rows=11, cols=22))
    await screen.until(r"columns=22, lines=11")
    assert (await screen.process.wait()).exit_code == 0
    await screen.process.detach()


@within(30)
async def test_interrupt_ends_what_runs_and_not_the_shell(shared_sandbox: GuestSandbox) -> None:
    screen = await shell(shared_sandbox)
    await screen.type("sh -c 'echo beg\"\"in; exec sleep 1000'\n")
    await screen.until("\nbegin\r\n")
    await screen.type("\x03")
    await screen.until(r"\^C")
    await screen.until("ready> ")
    await screen.type("echo status $?\n")
    await screen.until("\nstatus 130\r\n")
    await screen.process.kill()
    assert (await screen.process.wait()).reason == Reason.KILLED
    await screen.process.detach()


@within(30)
async def test_jobs_can_be_stopped_and_continued(shared_sandbox: GuestSandbox) -> None:
    screen = await shell(shared_sandbox)
    await screen.type("echo begin; cat\n")
    await screen.until("\nbegin\r\n")  # what is typed ahead meets a terminal that changes its modes
    await screen.type("hello\n")
    await screen.until("hello\r\nhello\r\n")
    await screen.type("\x1a")
    await screen.until(r"Stopped\s+cat")
    await screen.until("ready> ")
    await screen.type("fg\n")
    await screen.until("cat\r\n")
    await screen.type("again\n")
    await screen.until("again\r\nagain\r\n")
    await screen.process.kill()
    await screen.process.detach()


@within(30)
async def test_end_of_input_ends_the_shell(shared_sandbox: GuestSandbox) -> None:
    screen = await shell(shared_sandbox)
    await screen.type("(exit 6)\n")
    await screen.until("ready> ")
    await screen.process.close_stdin()
    assert "exit" in await screen.rest()
    assert (await screen.process.wait()).exit_code == 6
    await screen.process.detach()


@within(30)
async def test_killed_terminal_leaves_nothing(sandbox: GuestSandbox) -> None:
    screen = await shell(sandbox)
    await screen.type("sleep 1000 & nohup setsid sleep 1000 >/dev/null 2>&1 & echo started\n")
    await screen.until("\nstarted\r\n")
    assert await screen.process.kill() >= 3  # setsid may still be between its two processes
    await screen.process.detach()
    assert [info for info in await sandbox.processes() if info.n_alive] == []


@within(30)
async def test_last_words_on_a_terminal_are_never_lost(shared_sandbox: GuestSandbox) -> None:
    async def last_words(number: int) -> None:
        process = await shared_sandbox.start(f"echo last words {number}", tty=TerminalSize())
        said = b"".join([chunk.data async for chunk in process.output()])
        assert said == b"last words %d\r\n" % number
        await process.detach()

    for start in range(0, 200, 20):
        async with asyncio.TaskGroup() as group:
            for number in range(start, start + 20):
                group.create_task(last_words(number))


@within(30)
async def test_much_typed_into_a_terminal_arrives(shared_sandbox: GuestSandbox) -> None:
    """More than a terminal's buffer, to a reader that is slow to begin."""
    script = "stty raw -echo; echo ready; sleep 0.3; head -c 200000 | sha256sum"
    screen = Screen(await shared_sandbox.start(script, tty=TerminalSize()))
    await screen.until("ready")
    content = os.urandom(200_000)
    await screen.process.write_stdin(content)
    await screen.until(hashlib.sha256(content).hexdigest())
    await screen.process.detach()


@within(30)
async def test_resize_without_a_terminal_is_refused(shared_sandbox: GuestSandbox) -> None:
    process = await shared_sandbox.start(["sleep", "1000"])
    with pytest.raises(NotSupported):
        await process.resize(TerminalSize())
    await process.kill()
    await process.detach()


# Input

TEN_MIB = os.urandom(MIB) * 10
SLOW_READER = """
import hashlib, sys, time
digest = hashlib.sha256()
while piece := sys.stdin.buffer.read(1 << 18):
    digest.update(piece)
    time.sleep(0.01)
print(digest.hexdigest())
"""


@pytest.mark.parametrize("command", ["sha256sum", ["python3", "-c", SLOW_READER]], ids=["fast", "slow"])
@within(30)
async def test_ten_mib_through_stdin(shared_sandbox: GuestSandbox, command: str | list[str]) -> None:
    digest = hashlib.sha256(TEN_MIB).hexdigest()
    result = await shared_sandbox.execute(command, stdin=TEN_MIB)
    assert result.stdout.head.decode().split()[0] == digest

    process = await shared_sandbox.start(command, stdin=True)
    for at in range(0, len(TEN_MIB), 700_001):
        await process.write_stdin(TEN_MIB[at : at + 700_001])
    await process.close_stdin()
    assert (await process.wait()).stdout.head.decode().split()[0] == digest
    await process.detach()


@within(30)
async def test_ten_mib_in_and_the_same_out_at_once(shared_sandbox: GuestSandbox) -> None:
    process = await shared_sandbox.start(["cat"], stdin=True)

    async def feed() -> None:
        await process.write_stdin(TEN_MIB)
        await process.close_stdin()

    feeding = asyncio.create_task(feed())
    assert b"".join([chunk.data async for chunk in process.output()]) == TEN_MIB
    await feeding
    await process.detach()


@within(30)
async def test_input_that_nobody_reads_is_no_obstacle(shared_sandbox: GuestSandbox) -> None:
    assert (await shared_sandbox.execute("exit 3", stdin=TEN_MIB)).exit_code == 3
    assert (await shared_sandbox.execute("sleep 0.3; exit 4", stdin=TEN_MIB)).exit_code == 4
    assert (await shared_sandbox.execute("exec < /dev/null; sleep 0.3; exit 5", stdin=TEN_MIB)).exit_code == 5
    partly = await shared_sandbox.execute("head -c 100000 | wc -c", stdin=TEN_MIB)
    assert partly.stdout.head == b"100000\n"


@within(30)
async def test_command_that_does_not_read_stalls_only_its_own_input(shared_sandbox: GuestSandbox) -> None:
    deaf = await shared_sandbox.start(["sleep", "1000"], stdin=True)
    feeding = asyncio.create_task(deaf.write_stdin(TEN_MIB))
    result = await shared_sandbox.execute("sha256sum", stdin=TEN_MIB)
    assert result.stdout.head.decode().split()[0] == hashlib.sha256(TEN_MIB).hexdigest()
    assert not feeding.done()
    await deaf.kill()
    with pytest.raises(ProcessEnded):
        await feeding
    await deaf.detach()


@within(30)
async def test_no_bytes_of_input_are_an_end_at_once(shared_sandbox: GuestSandbox) -> None:
    assert (await shared_sandbox.execute("wc -c", stdin=b"")).stdout.head == b"0\n"
    assert (await shared_sandbox.execute("wc -c")).stdout.head == b"0\n"
    process = await shared_sandbox.start("wc -c", stdin=True)
    await process.close_stdin()
    assert (await process.wait()).stdout.head == b"0\n"
    await process.detach()


@within(30)
async def test_input_for_a_command_without_any_is_refused(shared_sandbox: GuestSandbox) -> None:
    process = await shared_sandbox.start(["sleep", "1000"])
    with pytest.raises(ProcessEnded):
        await process.write_stdin(b"hello")
    await process.kill()
    await process.detach()


@within(30)
async def test_input_after_its_end_is_refused(shared_sandbox: GuestSandbox) -> None:
    closed_by_us = await shared_sandbox.start("cat; sleep 1000", stdin=True)
    await closed_by_us.close_stdin()
    closed_by_it = await shared_sandbox.start("exec < /dev/null; echo closed; sleep 1000", stdin=True)
    assert (await anext(closed_by_it.output())).data == b"closed\n"
    over = await shared_sandbox.start("true", stdin=True)
    await over.wait()
    for process in (closed_by_us, closed_by_it, over):
        with pytest.raises(ProcessEnded):
            await process.write_stdin(TEN_MIB)
        await process.kill()
        await process.detach()
