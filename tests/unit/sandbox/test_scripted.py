import asyncio
import re
import signal

import pytest

from sandbox.backends.scripted import Reply, Rule, ScriptedSandbox, UnexpectedCommand
from sandbox.errors import (
    NotFound,
    NotSupported,
    ProcessEnded,
    ProcessNotFound,
    RequestConflict,
    SandboxLost,
    UserNotAllowed,
)
from sandbox.protocol import Sandbox, SupportsSearch
from sandbox.types import ExecResult, Reason, RequestId, Stream, TerminalSize


def test_it_is_a_sandbox() -> None:
    assert isinstance(ScriptedSandbox(), Sandbox)
    assert isinstance(ScriptedSandbox(), SupportsSearch)


async def test_the_first_rule_that_matches_answers_and_calls_are_recorded() -> None:
    async with ScriptedSandbox(
        [
            Rule("ls -l", Reply(b"one\n")),
            Rule(re.compile("^ls"), Reply(b"two\n", exit_code=3)),
            Rule(lambda call: call.user == "root", UserNotAllowed("not as root")),
            Rule("again", Reply(b"first\n"), n_times=1),
            Rule("again", lambda call: Reply(call.line.encode())),
            Rule("whole", ExecResult(exit_code=None, reason=Reason.KILLED, signal=9)),
        ]
    ) as sandbox:
        assert (await sandbox.execute(["ls", "-l"])).stdout.head == b"one\n"
        assert (await sandbox.execute("ls /")).exit_code == 3
        with pytest.raises(UserNotAllowed):
            await sandbox.execute("id", user="root")
        assert (await sandbox.execute("again")).stdout.head == b"first\n"
        assert (await sandbox.execute("again")).stdout.head == b"again"
        assert (await sandbox.execute("whole")).reason is Reason.KILLED
        assert [call.line for call in sandbox.calls] == ["ls -l", "ls /", "id", "again", "again", "whole"]
        assert await sandbox.processes() == []


async def test_a_command_without_a_rule_is_no_sandbox_error() -> None:
    async with ScriptedSandbox([Rule("known", Reply())]) as sandbox:
        with pytest.raises(UnexpectedCommand, match=r"no rule answers 'rm -rf /'. Rules: 'known'"):
            await sandbox.execute("rm -rf /")
        with pytest.raises(NotFound):
            await sandbox.execute("known", cwd="missing")


async def test_pieces_arrive_live_and_again_from_an_offset() -> None:
    async with ScriptedSandbox([Rule("talk", Reply([b"abc", b"def"], delay_s=0.01))]) as sandbox:
        process = await sandbox.start("talk", request_id=RequestId("r"))
        assert [(chunk.offset, chunk.data) async for chunk in process.output()] == [(0, b"abc"), (3, b"def")]
        again = await sandbox.attach(process.id, offset=4)
        assert [(chunk.offset, chunk.data) async for chunk in again.output()] == [(4, b"ef")]
        assert (await again.wait()).stdout.total_bytes == 6
        await sandbox.acknowledge(process.id)
        with pytest.raises(ProcessNotFound):
            await sandbox.attach(process.id)


async def test_streams_are_separate_only_where_asked() -> None:
    async with ScriptedSandbox([Rule("both", Reply(b"out", b"err"))]) as sandbox:
        apart = await sandbox.execute("both", separate=True)
        together = await sandbox.execute("both")
        assert (apart.stdout.head, apart.stderr.head) == (b"out", b"err")
        assert (together.stdout.head, together.stderr.total_bytes) == (b"outerr", 0)
        process = await sandbox.start("both", separate=True)
        assert [chunk.stream async for chunk in process.output()] == [Stream.STDOUT, Stream.STDERR]


async def test_output_is_bounded() -> None:
    async with ScriptedSandbox([Rule("long", Reply(b"0123456789"))]) as sandbox:
        said = (await sandbox.execute("long", head_bytes=2, tail_bytes=3)).stdout
        assert (said.head, said.tail, said.total_bytes, said.truncated) == (b"01", b"789", 10, True)


async def test_stdin_timeout_signal_and_kill() -> None:
    rules = [Rule("cat", Reply(echo=True)), Rule("sleep", Reply(b"zzz", forever=True))]
    async with ScriptedSandbox(rules) as sandbox:
        assert (await sandbox.execute("cat", stdin=b"hello")).stdout.head == b"hello"
        cat = await sandbox.start("cat", stdin=True)
        await cat.write_stdin(b"a")
        await cat.close_stdin()
        assert (await cat.wait()).stdout.head == b"a"
        with pytest.raises(ProcessEnded):
            await cat.write_stdin(b"b")
        assert (await sandbox.execute("sleep", timeout_s=0.01)).reason is Reason.TIMED_OUT
        signalled = await sandbox.start("sleep")
        await signalled.signal(signal.SIGTERM)
        assert (await signalled.wait()).signal == signal.SIGTERM
        killed = await sandbox.start("sleep")
        assert [info.running for info in await sandbox.processes()] == [True]
        assert await killed.kill() == 1
        assert await killed.kill() == 0
        assert (await killed.wait()).reason is Reason.KILLED
        with pytest.raises(NotSupported):
            await killed.resize(TerminalSize())


async def test_a_cancelled_execute_kills_its_command() -> None:
    async with ScriptedSandbox([Rule("sleep", Reply(forever=True))]) as sandbox:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await sandbox.execute("sleep", request_id=RequestId("r"))
        process = await sandbox.attach((await sandbox.processes())[0].id)
        assert (await process.wait()).reason is Reason.KILLED


async def test_a_request_id_runs_once() -> None:
    async with ScriptedSandbox([Rule(re.compile(""), Reply(b"x"))]) as sandbox:
        request = RequestId("r")
        first = await sandbox.execute("a", stdin=b"in", request_id=request)
        assert await sandbox.execute("a", stdin=b"in", request_id=request) == first
        assert len(sandbox.calls) == 1
        with pytest.raises(RequestConflict):
            await sandbox.execute("b", request_id=request)


async def test_a_destroyed_sandbox_is_lost() -> None:
    sandbox = ScriptedSandbox([Rule("sleep", Reply(forever=True))])
    process = await sandbox.start("sleep")
    await sandbox.destroy()
    assert (await process.wait()).reason is Reason.KILLED
    with pytest.raises(SandboxLost):
        await sandbox.execute("sleep")
