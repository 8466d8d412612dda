"""Commands that run: killing, timing out, signalling, attaching again, terminals."""

import asyncio
import contextlib
import signal
import time

from sandbox.conformance.check import Ability, Checks, Place, expect, expect_equal, refused
from sandbox.errors import NotSupported, PathEscapes, ProcessEnded, ProcessNotFound, RequestConflict
from sandbox.protocol import Process
from sandbox.types import ProcessId, Reason, RequestId, TerminalSize

checks = Checks()

# A child in a session of its own, which a signal to the process group does not reach.
_MAZE = "setsid sh -c 'echo $$ > {0}; exec sleep 300' & (nohup sh -c 'echo $$ > {1}; exec sleep 300' &) ; sleep 300"


async def _pid(place: Place, name: str) -> int:
    """The number that a command wrote to a file, once it has."""
    while True:
        result = await place.sandbox.execute(["cat", str(place.path(name))])
        if result.exit_code == 0 and result.stdout.head.endswith(b"\n"):
            return int(result.stdout.head)
        await asyncio.sleep(0.02)


async def _is_alive(place: Place, pid: int) -> bool:
    result = await place.sandbox.execute(f"grep -q '^State:[[:space:]]*[^ZX]' /proc/{pid}/status 2>/dev/null")
    return result.exit_code == 0


async def _expect_dead(place: Place, *names: str) -> None:
    for name in names:
        pid = await _pid(place, name)
        expect(not await _is_alive(place, pid), f"the process that wrote {name!r} is still alive")


async def _said(process: Process, wanted: bytes) -> bytes:
    """Reads output until `wanted` is in it."""
    said = b""
    async for chunk in process.output():
        said += chunk.data
        if wanted in said:
            return said
    raise AssertionError(f"the command ended without saying {wanted!r}: {said!r}")


@checks.needs(Ability.PROCESSES)
async def a_timeout_ends_everything_it_started(place: Place) -> None:
    begin = time.monotonic()
    command = _MAZE.format(place.path("a"), place.path("b"))
    result = await place.sandbox.execute(command, timeout_s=1.0)
    expect_equal((result.exit_code, result.reason), (None, Reason.TIMED_OUT), "exit code and reason")
    expect(time.monotonic() - begin < 10, "the timeout came late")
    await _expect_dead(place, "a", "b")


@checks.needs(Ability.PROCESSES)
async def kill_ends_everything_it_started(place: Place) -> None:
    process = await place.sandbox.start(_MAZE.format(place.path("a"), place.path("b")))
    await _pid(place, "a")
    await _pid(place, "b")
    n_killed = await process.kill()
    expect(n_killed >= 3, f"kill counted {n_killed} processes; there were at least three")
    result = await process.wait()
    expect_equal((result.exit_code, result.reason), (None, Reason.KILLED), "exit code and reason")
    await _expect_dead(place, "a", "b")
    expect_equal(await process.kill(), 0, "what a second kill finds")


@checks.needs(Ability.PROCESSES)
async def a_cancelled_execute_ends_everything_it_started(place: Place) -> None:
    running = asyncio.create_task(place.sandbox.execute(_MAZE.format(place.path("a"), place.path("b"))))
    try:
        await _pid(place, "a")
        await _pid(place, "b")
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    await _expect_dead(place, "a", "b")


@checks.needs(Ability.PROCESSES)
async def children_of_a_command_that_ended_live_on(place: Place) -> None:
    request = RequestId(f"children-{place.directory.name}")
    command = f"sh -c 'echo $$ > {place.path('a')}; exec sleep 300' >/dev/null 2>&1 & echo started"
    result = await place.sandbox.execute(command, request_id=request)
    expect_equal((result.exit_code, result.reason), (0, Reason.EXITED), "exit code and reason")
    pid = await _pid(place, "a")
    expect(await _is_alive(place, pid), "the background child did not outlive its parent")
    listed = {info.id: info for info in await place.sandbox.processes()}
    expect(ProcessId(request) in listed, "the command with a live child is not listed")
    info = listed[ProcessId(request)]
    expect_equal((info.running, info.n_alive), (False, 1), "whether it runs, and its living processes")
    process = await place.sandbox.attach(ProcessId(request))
    expect_equal(await process.kill(), 1, "what kill ended")
    await _expect_dead(place, "a")
    await place.sandbox.acknowledge(request)


@checks.needs(Ability.PROCESSES)
async def output_is_live_and_stdin_interactive(place: Place) -> None:
    process = await place.sandbox.start('echo ready; read line; echo "got $line"', stdin=True)
    await _said(process, b"ready\n")
    await process.write_stdin(b"this\n")
    await _said(process, b"got this\n")
    result = await process.wait()
    expect_equal(result.stdout.head, b"ready\ngot this\n", "the whole output")
    with refused("writing to a command that is over", ProcessEnded):
        await process.write_stdin(b"more")
    process = await place.sandbox.start("cat", stdin=True)
    await process.write_stdin("€".encode()[:1])
    await process.write_stdin("€".encode()[1:])
    await process.close_stdin()
    expect_equal((await process.wait()).stdout.head, "€".encode(), "what came back after the end of stdin")


@checks.needs(Ability.PROCESSES)
async def a_signal_reaches_the_command(place: Place) -> None:
    process = await place.sandbox.start("trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    await _said(process, b"ready\n")
    await process.signal(signal.SIGTERM)
    result = await process.wait()
    expect_equal((result.exit_code, result.stdout.head[-7:]), (3, b"caught\n"), "exit code and end of the output")
    with refused("a signal to a command that is over", ProcessEnded):
        await process.signal(signal.SIGTERM)


@checks.needs(Ability.PROCESSES)
async def a_repeated_request_runs_once(place: Place) -> None:
    request = RequestId(f"once-{place.directory.name}")
    command = f"echo ran >> {place.path('log')}; echo output; exit 4"
    first = await place.sandbox.execute(command, request_id=request)
    second = await place.sandbox.execute(command, request_id=request)
    expect_equal((second.exit_code, second.stdout.head), (4, b"output\n"), "the outcome of the repetition")
    expect_equal(second.reason, first.reason, "the reason")
    expect_equal(await place.files.read(place.path("log")), b"ran\n", "what the command left: it ran once")
    with refused("the id of another request", RequestConflict):
        await place.sandbox.execute("true", request_id=request)
    await place.sandbox.acknowledge(request)


@checks.needs(Ability.PROCESSES)
async def a_handle_can_be_had_again(place: Place) -> None:
    request = RequestId(f"again-{place.directory.name}")
    first = await place.sandbox.start("printf abcdef; read x; printf ghi", stdin=True, request_id=request)
    await _said(first, b"abcdef")
    await first.detach()
    again = await place.sandbox.attach(ProcessId(request), offset=3)
    expect_equal(again.pid, first.pid, "the pid")
    await again.write_stdin(b"\n")
    chunks = [chunk async for chunk in again.output()]
    expect_equal(b"".join(chunk.data for chunk in chunks), b"defghi", "the output from the offset on")
    expect_equal(chunks[0].offset, 3, "the first offset")
    expect_equal((await again.wait()).stdout.head, b"abcdefghi", "the whole output in the result")
    late = await place.sandbox.attach(ProcessId(request), offset=9)
    expect_equal([chunk.data async for chunk in late.output()], [], "the output after its end")
    await again.detach()
    await late.detach()
    await place.sandbox.acknowledge(request)
    with refused("attaching to what was acknowledged", ProcessNotFound):
        await place.sandbox.attach(ProcessId(request))
    with refused("attaching to what never was", ProcessNotFound):
        await place.sandbox.attach(ProcessId("no-such-process"))


@checks.needs(Ability.PROCESSES)
async def running_commands_are_listed(place: Place) -> None:
    request = RequestId(f"listed-{place.directory.name}")
    process = await place.sandbox.start(["sleep", "300"], request_id=request)
    listed = {info.id: info for info in await place.sandbox.processes()}
    expect(process.id in listed, "a running command is not listed")
    info = listed[process.id]
    found = (info.pid, info.argv, info.running, info.exit_code)
    expect_equal(found, (process.pid, ("sleep", "300"), True, None), "pid, argv, running and exit code")
    await process.kill()
    info = next(info for info in await place.sandbox.processes() if info.id == process.id)
    expect_equal((info.running, info.reason), (False, Reason.KILLED), "running and reason after the kill")
    await process.detach()
    await place.sandbox.acknowledge(request)
    expect(
        all(info.id != process.id for info in await place.sandbox.processes()),
        "it is listed after its end was acknowledged",
    )


@checks.needs(Ability.PROCESSES)
async def a_terminal_is_a_terminal(place: Place) -> None:
    size = TerminalSize(rows=30, cols=100)
    command = "test -t 0 && test -t 1 && test -t 2 && echo is-a-tty; stty size; read x; stty size; exit 5"
    process = await place.sandbox.start(command, tty=size, stdin=True)
    await _said(process, b"30 100")
    await process.resize(TerminalSize(rows=40, cols=120))
    await process.write_stdin(b"\n")
    result = await process.wait()
    expect(b"is-a-tty" in result.stdout.head, f"it is no terminal: {result.stdout.head!r}")
    expect(b"40 120" in result.stdout.head, f"the new size was not seen: {result.stdout.head!r}")
    expect_equal(result.exit_code, 5, "the exit code")
    plain = await place.sandbox.start("sleep 300")
    try:
        try:
            await plain.resize(size)
        except NotSupported:
            return
        raise AssertionError("a command without a terminal was resized")
    finally:
        await plain.kill()


@checks.needs(Ability.PROCESSES)
async def control_characters_work_in_a_terminal(place: Place) -> None:
    process = await place.sandbox.start(["cat"], tty=TerminalSize(), stdin=True)
    await process.write_stdin(b"line\n")
    await _said(process, b"line\r\nline\r\n")
    await process.write_stdin(b"\x03")
    result = await process.wait()
    expect_equal((result.reason, result.signal), (Reason.SIGNALED, signal.SIGINT), "how Ctrl-C ended it")
    process = await place.sandbox.start(["cat"], tty=TerminalSize(), stdin=True)
    await process.write_stdin(b"\x04")
    expect_equal((await process.wait()).exit_code, 0, "how Ctrl-D ended it")


@checks.needs(Ability.PROCESSES)
async def a_write_follows_no_link_out_of_the_workspace(place: Place) -> None:
    outside = f"/tmp/{place.directory.name}"
    await place.sandbox.execute(f"echo outside > {outside} && ln -s {outside} {place.path('l')}")
    await place.sandbox.execute(f"ln -s /tmp {place.path('d')}")
    for atomic in (True, False):
        for path in (place.path("l"), place.path("d", place.directory.name)):
            with refused(f"writing through {path.name!r}, atomic={atomic}", PathEscapes):
                await place.files.write(path, b"inside", atomic=atomic)
    expect_equal(await place.files.read(outside), b"outside\n", "the file outside")
    await place.files.delete(outside)
