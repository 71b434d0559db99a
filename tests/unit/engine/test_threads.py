"""The threads of several engines on one event loop."""

from __future__ import annotations

import asyncio

from runtime.engine.threads import RunThreads


async def test_one_engine_that_closes_leaves_the_threads_of_another() -> None:
    loop = asyncio.get_running_loop()
    first, second, third = (RunThreads(loop, concurrency=1) for _ in range(3))
    for one in (second, third):
        one.let_go()
        await loop.shutdown_default_executor()  # a component's doing, which does nothing
        assert await asyncio.to_thread(lambda: "ran") == "ran"
    first.let_go()
    assert await asyncio.to_thread(lambda: "ran") == "ran"


async def test_a_loop_without_engines_has_its_own_functions_again() -> None:
    loop = asyncio.get_running_loop()
    before = set(vars(loop))
    threads = RunThreads(loop, concurrency=1)
    assert set(vars(loop)) - before == {"headrace_run_threads", "set_default_executor", "shutdown_default_executor"}
    threads.let_go()
    assert set(vars(loop)) == before
