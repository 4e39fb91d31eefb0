"""What tasks write to stdout and stderr. Real processes, no database."""

import asyncio
import os
import select
import threading
from pathlib import Path

from tests.support.pools import PoolHarness, ok
from tests.support.waiting import eventually_async


async def test_a_flood_of_output_into_a_stopped_sink_blocks_no_job() -> None:
    reader, writer = os.pipe()  # never read
    try:
        async with PoolHarness(processes=2, output=(writer, writer)) as harness:
            await harness.all_ready()
            flood = harness.send(harness.job("say", text="x" * 65535 + "\n", times=4000))
            others = [harness.job("add", a=n, b=1) for n in range(200)]
            harness.send(*others)
            await harness.all_done(others, timeout=20)
            assert ok(await harness.outcome(flood, timeout=60)) == 4000 * 65536
            assert harness.pool.stats().output_dropped_bytes > 200 << 20
    finally:
        os.close(reader)
        # The thread that was blocked writes on to this number, which another test's pipe may have next.
        await eventually_async(lambda: not any(one.name == "horsies-output" for one in threading.enumerate()))
        os.close(writer)


async def test_a_sink_that_is_full_and_not_blocking_loses_no_output() -> None:
    """Another process that has the same terminal or pipe may make it so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        async with PoolHarness(processes=1, output=(writer, writer)) as harness:
            size, times = 1000, 500  # more than the pipe holds
            sent = harness.send(harness.job("say", text="x" * (size - 1) + "\n", times=times))

            def is_full() -> bool:
                # not by bytes: a page of the pipe may be half empty where the next write did not fit into it
                return not select.select([], [writer], [], 0)[1]

            await eventually_async(is_full)
            got = bytearray()
            while len(got) < size * times:
                got += await asyncio.wait_for(asyncio.to_thread(os.read, reader, 1 << 16), 10)
            assert ok(await harness.outcome(sent)) == size * times
            odd = set(bytes(got).splitlines()) - {b"x" * (size - 1)}
            assert not odd, [line[:200] + b"..." + line[-200:] for line in odd]
            assert harness.pool.stats().output_dropped_bytes == 0
    finally:
        os.close(reader)
        os.close(writer)


async def test_output_is_cut_and_escaped(tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    with sink.open("wb") as file:
        async with PoolHarness(processes=1, output=(file.fileno(), file.fileno())) as harness:
            await harness.run("say", text="\x1b[2Jred\x07 %s {} \u202eevil\n")
            await harness.run("say", text="y" * 10_000_000 + "\n")
            await harness.run("printing", text="printed")
            await harness.run("say", text="to stderr\n", stream=2)
            await harness.run("say", text="no end of line")
    lines = sink.read_bytes().split(b"\n")
    assert b"\\x1b[2Jred\\x07 %s {} \\u202eevil" in lines
    assert b"printed" in lines
    assert b"to stderr" in lines
    assert b"no end of line" in lines
    (cut,) = [line for line in lines if line.startswith(b"yyy")]
    assert len(cut) < 8300
    assert cut.endswith(b"more bytes cut]")
