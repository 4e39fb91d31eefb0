"""The dashboard of `bench day`: without a terminal, at its own interval, one screen after the other until it is stopped."""

import asyncio
import itertools
import os
import signal

from horsies import PostgresConfig
from horsies_tui.app import Dashboard
from horsies_tui.data.postgres import PostgresSource

SCREENS, STAY_S = "1234567", 2.0
QUICK_TOURS, QUICK_STAY_S = 48, 0.1
"""The first tours are quick, so that two things are over before memory is judged: Textual keeps the last 16 sizes of
each widget, and gets a new one with each visit of its screen; and the free pieces in the heap of the C library find
their level after some 30 tours. From there to 200 tours memory did not grow (71.2 and 71.1 MB)."""


async def main() -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    config = PostgresConfig(os.environ["BENCH_DATABASE_URL"], pool_max_size=1, application_name="horsies tui")
    async with Dashboard(PostgresSource(config)).run_test(size=(160, 50)) as pilot:
        for tour in itertools.count():
            for key in SCREENS:
                await pilot.press(key)
                try:
                    async with asyncio.timeout(QUICK_STAY_S if tour < QUICK_TOURS else STAY_S):
                        await over.wait()
                        return
                except TimeoutError:
                    pass


if __name__ == "__main__":
    asyncio.run(main())
