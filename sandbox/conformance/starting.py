"""Commands: how they are started, fed, and what comes back."""

import asyncio
from typing import Any, cast

from sandbox.conformance.check import Ability, Checks, Place, expect, expect_equal, refused
from sandbox.errors import (
    CommandNotExecutable,
    CommandNotFound,
    InvalidArgument,
    InvalidPath,
    NotDirectory,
    NotFound,
    PathEscapes,
    UnknownUser,
)
from sandbox.types import Reason, Stream

checks = Checks()


@checks.needs(Ability.PROCESSES)
async def exit_codes_are_results(place: Place) -> None:
    for code in (0, 1, 7, 255):
        result = await place.sandbox.execute(f"exit {code}")
        expect_equal((result.exit_code, result.reason), (code, Reason.EXITED), "exit code and reason")
    result = await place.sandbox.execute("no-such-program-anywhere")
    expect_equal((result.exit_code, result.reason), (127, Reason.EXITED), "what the shell says of no program")


@checks.needs(Ability.PROCESSES)
async def an_argv_meets_no_shell(place: Place) -> None:
    words = ["$HOME", "*", "a b", "", "'q'", "ü", "new\nline"]
    result = await place.sandbox.execute(["printf", "<%s>", *words])
    expect_equal(result.stdout.head.decode(), "".join(f"<{word}>" for word in words), "the words")


@checks.needs(Ability.PROCESSES)
async def a_signal_is_a_reason_of_its_own(place: Place) -> None:
    result = await place.sandbox.execute("kill -SEGV $$")
    found = (result.exit_code, result.reason, result.signal)
    expect_equal(found, (None, Reason.SIGNALED, 11), "exit code, reason and signal")


@checks.needs(Ability.PROCESSES)
async def programs_that_cannot_be_run_are_refused(place: Place) -> None:
    with refused("a program that is not there", CommandNotFound):
        await place.sandbox.execute(["no-such-program-anywhere"])
    with refused("a path that is not there", CommandNotFound):
        await place.sandbox.execute([str(place.path("missing"))])
    await place.files.write(place.path("f"), b"#!/bin/sh\n", mode=0o644)
    with refused("a file that is not executable", CommandNotExecutable):
        await place.sandbox.execute([str(place.path("f"))])


@checks.needs(Ability.PROCESSES)
async def stdin_is_fed_and_ended(place: Place) -> None:
    expect_equal((await place.sandbox.execute("cat", stdin=b"in\0put")).stdout.head, b"in\0put", "what cat says")
    expect_equal((await place.sandbox.execute("cat", stdin=b"")).stdout.head, b"", "what cat says to nothing")
    expect_equal((await place.sandbox.execute("cat")).stdout.head, b"", "what cat says where there is no stdin")
    result = await place.sandbox.execute("wc -c", stdin=bytes(3_000_000))
    expect_equal(result.stdout.head.strip(), b"3000000", "the bytes of a large stdin")
    result = await place.sandbox.execute("exit 3", stdin=bytes(3_000_000))
    expect_equal(result.exit_code, 3, "a command that does not read its stdin")


@checks.needs(Ability.PROCESSES)
async def the_environment_is_given(place: Place) -> None:
    env = {"PLAIN": "value", "ODD": "a b\n'\"$x ü", "EMPTY": ""}
    result = await place.sandbox.execute('printf "%s|%s|%s|%s" "$PLAIN" "$ODD" "${EMPTY-unset}" "$HOME"', env=env)
    plain, odd, empty, home = result.stdout.head.decode().split("|")
    expect_equal((plain, odd, empty), (env["PLAIN"], env["ODD"], ""), "the variables")
    expect(home.startswith("/"), f"HOME is {home!r}")
    for bad in ({"A=B": "x"}, {"": "x"}, {"A": "a\0b"}, {"A": 3}):
        with refused(f"env={bad!r}", InvalidArgument):
            await place.sandbox.execute("true", env=cast(Any, bad))


@checks.needs(Ability.PROCESSES)
async def the_working_directory_is_given(place: Place) -> None:
    result = await place.sandbox.execute("pwd", cwd=place.directory)
    expect_equal(result.stdout.head.decode().strip(), str(place.directory), "the directory asked for")
    result = await place.sandbox.execute("pwd")
    expect_equal(result.stdout.head.strip(), b"/workspace", "the directory by default")
    await place.files.write(place.path("f"), b"")
    with refused("a cwd that is not there", NotFound):
        await place.sandbox.execute("true", cwd=place.path("missing"))
    with refused("a cwd that is a file", NotDirectory):
        await place.sandbox.execute("true", cwd=place.path("f"))
    with refused("a cwd that escapes", PathEscapes):
        await place.sandbox.execute("true", cwd="../..")
    with refused("a cwd with NUL", InvalidPath):
        await place.sandbox.execute("true", cwd="a\0b")


@checks.needs(Ability.PROCESSES)
async def an_unknown_user_is_refused(place: Place) -> None:
    with refused("an unknown user", UnknownUser):
        await place.sandbox.execute("true", user="no-such-user")
    for bad in ("", 3, "a\0b"):
        with refused(f"user={bad!r}", InvalidArgument):
            await place.sandbox.execute("true", user=cast(Any, bad))


@checks.needs(Ability.PROCESSES)
async def commands_that_mean_nothing_are_refused(place: Place) -> None:
    for command in ("", "  ", "a\0b", [], [""], ["echo", 3], ["a\0b"], None, 3, b"true"):
        with refused(f"the command {command!r}", InvalidArgument):
            await place.sandbox.execute(cast(Any, command))
    options: dict[str, Any]
    for options in ({"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": "3"}, {"head_bytes": -1}, {"tail_bytes": 1.5}):
        with refused(f"{options}", InvalidArgument):
            await place.sandbox.execute("true", **options)
    with refused("a stdin of text", InvalidArgument):
        await place.sandbox.execute("cat", stdin=cast(Any, "text"))


@checks.needs(Ability.PROCESSES)
async def combined_output_is_in_exact_order(place: Place) -> None:
    result = await place.sandbox.execute("for i in $(seq 300); do echo o$i; echo e$i >&2; done")
    wanted = "".join(f"o{n}\ne{n}\n" for n in range(1, 301)).encode()
    expect_equal(result.stdout.head + result.stdout.tail, wanted, "the combined output")
    expect_equal(result.stderr.total_bytes, 0, "bytes of stderr where the streams are combined")


@checks.needs(Ability.PROCESSES)
async def separate_streams_are_each_in_order(place: Place) -> None:
    command = "for i in $(seq 300); do echo o$i; echo e$i >&2; done"
    result = await place.sandbox.execute(command, separate=True)
    expect_equal(result.stdout.head, "".join(f"o{n}\n" for n in range(1, 301)).encode(), "stdout")
    expect_equal(result.stderr.head, "".join(f"e{n}\n" for n in range(1, 301)).encode(), "stderr")
    process = await place.sandbox.start(command, separate=True)
    said: dict[Stream, bytes] = {}
    async for chunk in process.output():
        said[chunk.stream] = said.get(chunk.stream, b"") + chunk.data
    expect_equal(said, {Stream.STDOUT: result.stdout.head, Stream.STDERR: result.stderr.head}, "the live streams")
    await process.wait()


@checks.needs(Ability.PROCESSES)
async def output_is_bytes(place: Place) -> None:
    result = await place.sandbox.execute(r"printf '\377\376\000\303'")
    expect_equal(result.stdout.head, b"\xff\xfe\x00\xc3", "bytes that are no text")


@checks.needs(Ability.PROCESSES)
async def large_output_is_bounded_counted_and_kept(place: Place) -> None:
    n_bytes = 3_000_000
    command = f"head -c {n_bytes - 6} /dev/zero | tr '\\0' x; printf 'theend'"
    result = await place.sandbox.execute(command, head_bytes=1000, tail_bytes=500)
    said = result.stdout
    expect_equal((len(said.head), len(said.tail), said.total_bytes), (1000, 500, n_bytes), "head, tail and total")
    expect(said.truncated and said.tail.endswith(b"theend"), "the tail is not the end of the output")
    expect(said.file is not None, "the result names no file with the whole output")
    assert said.file is not None
    info = await place.files.stat(said.file)
    expect_equal((info.size_bytes, said.file_truncated), (n_bytes, False), "the file's size, and whether it was capped")
    expect_equal(await place.files.read(said.file, offset=n_bytes - 8), b"xxtheend", "the file's end")


@checks.needs(Ability.PROCESSES)
async def bounds_of_zero_show_nothing_and_count_everything(place: Place) -> None:
    said = (await place.sandbox.execute("echo hello", head_bytes=0, tail_bytes=0)).stdout
    expect_equal((said.head, said.tail, said.total_bytes), (b"", b"", 6), "head, tail and total")


@checks.needs(Ability.PROCESSES)
async def many_at_once_are_not_mixed_up(place: Place) -> None:
    async def one(n: int) -> None:
        result = await place.sandbox.execute(f"echo {n}; cat; exit {n}", stdin=f"in{n}".encode())
        expect_equal((result.exit_code, result.stdout.head), (n, f"{n}\nin{n}".encode()), f"command {n}")

    try:
        async with asyncio.TaskGroup() as group:
            for n in range(32):
                group.create_task(one(n))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
