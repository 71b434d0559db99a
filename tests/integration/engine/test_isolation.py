"""Runs beside each other: nothing of one is seen in another, and none waits for another."""

from __future__ import annotations

import asyncio
import time

import pytest

from runtime.errors import RunFailed
from shared_models.result import RunEventType
from tests.integration.engine.conftest import Runner, Told
from tests.support import flows
from tests.support.flows import Field
from tests.support.provider import Echo

CARRIES = """
    async def work(self) -> Message:
        import asyncio
        await asyncio.sleep(0.001 * (hash(self.text) % 7))
        return Message(text=f"{self.text}|{self.graph.session_id}|{self.secret}|{self.user_id}")
"""


def carrier() -> flows.Flow:
    inputs = 'MessageTextInput(name="secret", display_name="Secret")'
    return flows.through(CARRIES, inputs=inputs, values={"secret": Field(value="WHOSE", load_from_db=True)})


async def test_200_interleaved_events_on_one_warm_flow_carry_their_own(run: Runner) -> None:
    from runtime.engine.runner import user_id

    flow = carrier()
    await run.load(flow)
    limit = asyncio.Semaphore(40)
    told = [Told() for _ in range(200)]

    async def one(n: int) -> str:
        from runtime.engine.base import RunRequest

        request = RunRequest(
            event_id=f"e{n}",
            payload={"input_value": f"text-{n}"},
            session_id=f"session-{n}",
            tenant_id=f"tenant-{n % 3}",
            variables={"WHOSE": f"secret-{n}"},
        )
        async with limit:
            output = await run.engine.run(await run.load(flow), request, run.history, told[n])
        assert [commit.session for commit in output.chat] == [f"session-{n}"]
        assert [op.message["text"] for op in output.chat[0].ops] == [f"text-{n}", output.result.text]
        assert output.result.outputs[0].data["session_id"] == f"session-{n}"
        return output.result.text or ""

    said = await asyncio.gather(*(one(n) for n in range(200)))
    assert said == [f"text-{n}|session-{n}|secret-{n}|{user_id(f'tenant-{n % 3}')}" for n in range(200)]
    assert all(len(t.of(RunEventType.COMPONENT_ENDED)) == 3 for t in told)


async def test_b5_50_interleaved_model_calls_answer_their_own(run: Runner) -> None:
    flow = flows.llm()
    await run.load(flow)
    run.provider.default = Echo(delay=0.02)
    said = await asyncio.gather(*(run.text(flow, f"my id is {n}") for n in range(50)))
    assert list(said) == [f"echo: my id is {n}" for n in range(50)]


async def test_a_run_without_a_secret_does_not_see_anothers(run: Runner) -> None:
    body = "def work(self) -> Message:\n    return Message(text=str(len(str(self.secret or ''))) + ' of WHOSE')"
    inputs = 'SecretStrInput(name="secret", display_name="Secret", value="WHOSE")'
    flow = flows.through(body, inputs=inputs, imports="from lfx.io import SecretStrInput")
    await run.load(flow)
    with_it = [run.text(flow, "x", variables={"WHOSE": "x" * (n + 5)}) for n in range(10)]
    without = [run.text(flow, "x") for _ in range(10)]
    said = await asyncio.gather(*with_it, *without)
    assert len(set(said[:10])) == 1 or said[:10] == [f"{n + 5} of WHOSE" for n in range(10)]
    assert said[10:] == ["0 of WHOSE"] * 10


ASYNC_SLEEP = """
async def work(self) -> Message:
    import asyncio
    await asyncio.sleep(1)
    return Message(text=self.text)
"""
SYNC_SLEEP = """
def work(self) -> Message:
    import time
    time.sleep(1)
    return Message(text=self.text)
"""


@pytest.mark.parametrize("body", [ASYNC_SLEEP, SYNC_SLEEP], ids=["async", "sync"])
async def test_b1_parallel_runs_of_a_component_that_sleeps_take_as_long_as_one(run: Runner, body: str) -> None:
    flow = flows.through(body)
    await run.load(flow)
    await run.text(flow, "warm")
    began = time.monotonic()
    said = await asyncio.gather(*(run.text(flow, str(n)) for n in range(20)))
    took = time.monotonic() - began
    assert list(said) == [str(n) for n in range(20)]
    assert took < 6, f"20 runs of 1 s took {took:.1f} s: they waited for each other"


async def test_a_blocking_component_does_not_hold_up_quick_ones(run: Runner) -> None:
    slow, quick = flows.through(SYNC_SLEEP), flows.hello()
    await run.load(slow)
    await run.load(quick)
    sleeping = asyncio.create_task(run.text(slow, "slow"))
    for n in range(5):
        assert await run.text(quick, str(n)) == str(n)
    assert not sleeping.done()
    assert await sleeping == "slow"


async def test_t45_alternate_inputs_on_one_warm_flow(run: Runner) -> None:
    for text in ("a", "b", "a", "c"):
        assert await run.text(flows.hello(), text) == text


async def test_b11_a_flow_whose_parts_cannot_be_pickled_runs(run: Runner) -> None:
    body = """
        def work(self) -> Message:
            import ssl, threading
            self.lock, self.context = threading.RLock(), ssl.create_default_context()
            return Message(text=self.text, data={"lock": self.lock, "text": self.text})
    """
    output = (await run(flows.through(body, output=None), "x", session_id="s")).result.outputs[0]
    assert output.text == "x"


ENDS_THREADS = """
    async def work(self) -> Message:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor
        loop = asyncio.get_running_loop()
        own = ThreadPoolExecutor(1)
        loop.set_default_executor(own)
        own.shutdown()
        loop._default_executor.shutdown(wait=False)
        await loop.shutdown_default_executor()
        return Message(text=self.text)
"""


async def test_no_component_can_end_the_threads_that_others_run_in(run: Runner) -> None:
    ends, sleeps = flows.through(ENDS_THREADS), flows.through(SYNC_SLEEP)
    await run.load(ends)
    await run.load(sleeps)
    beside = asyncio.create_task(run.text(sleeps, "beside"))
    assert await run.text(ends, "over") == "over"
    assert await beside == "beside"
    assert await run.text(sleeps, "after") == "after"


async def test_stop_iteration_in_a_thread_is_told_at_once(run: Runner) -> None:
    flow = flows.through("def work(self) -> Message:\n    return Message(text=next(iter(())))")
    await run.load(flow)
    with pytest.raises(RunFailed, match="StopIteration"):
        async with asyncio.timeout(30):
            await run.text(flow, "x")
