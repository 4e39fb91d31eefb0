"""The stacks of a process as text."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from horsies_worker.output.stacks import MAX_TEXT, stacks_text


async def outer(gate: asyncio.Event) -> None:
    async for _ in numbers(gate):
        pass


async def numbers(gate: asyncio.Event) -> AsyncIterator[int]:
    await inner(gate)
    yield 1


async def inner(gate: asyncio.Event) -> None:
    await gate.wait()


async def test_a_task_is_shown_from_its_first_coroutine_on() -> None:
    gate = asyncio.Event()
    plain, looped = asyncio.create_task(inner(gate), name="plain"), asyncio.create_task(outer(gate), name="looped")
    await asyncio.sleep(0)
    text = stacks_text({plain: "of the queue"})
    gate.set()
    await asyncio.gather(plain, looped)
    first, second = text.split("async task of the queue\n")[1].split("asyncio task looped\n")
    assert first.index("in inner") < first.index("    await gate.wait()") < first.index("in wait")
    assert "in outer" in second


async def test_threads_with_the_same_stack_are_shown_together() -> None:
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, name=f"reader-{number}") for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        # a thread is at the same place as the others when it waits
        while "8 threads: reader-0; reader-1;" not in (text := stacks_text({})):
            await asyncio.sleep(0.01)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert "and 3 more" in text
    assert "reader-7" not in text


async def test_a_deep_recursion_is_cut_at_its_outer_end() -> None:
    gate = asyncio.Event()

    async def deep(level: int) -> None:
        await (deep(level - 1) if level else inner(gate))

    task = asyncio.create_task(deep(200))
    await asyncio.sleep(0)
    text = stacks_text({task: "deep"})
    gate.set()
    await task
    assert "outer frames left out" in text
    assert "in inner" in text
    assert text.count("in deep") < 100


def new_waiter(name: str) -> Callable[[asyncio.Event], Coroutine[Any, Any, None]]:
    made: dict[str, Any] = {}
    exec(f"async def {name}(gate):\n    await gate.wait()", made)
    return made[name]


async def test_the_text_is_bounded_and_says_how_much_is_missing() -> None:
    gate = asyncio.Event()
    tasks = [asyncio.create_task(new_waiter(f"waits_{number}_{'x' * 100}")(gate)) for number in range(1000)]
    await asyncio.sleep(0)
    text = stacks_text({})
    gate.set()
    await asyncio.gather(*tasks)
    shown = text.count("asyncio task ")
    assert len(text) < MAX_TEXT + 100
    assert 10 < shown < 1000
    left_out = int(text.splitlines()[-1].split()[0].replace(",", ""))
    assert left_out + shown == 1001  # with the task of this test
