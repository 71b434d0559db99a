"""What a finished flow's outputs look like: strict JSON, every output, and never success where there is none."""

from __future__ import annotations

import json

import pytest

from runtime.errors import EventFault, RunFailed
from shared_models.result import Output, OutputKind
from tests.integration.engine.conftest import Runner, ids
from tests.support import flows
from tests.support.provider import Say


def strict(output: Output) -> Output:
    """The output, if it is strict JSON."""
    assert json.loads(json.dumps(output.model_dump(mode="json"), allow_nan=False))["id"] == output.id
    return output


async def one(run: Runner, body: str, *, output: str | None = None, **more: object) -> Output:
    result = (await run(flows.through(body, output=output, **more), "hi")).result
    assert len(result.outputs) == 1
    return strict(result.outputs[0])


async def test_c8_every_chat_output_is_there_with_id_and_name(run: Runner) -> None:
    result = (await run(flows.two_outputs(), "hi")).result
    assert [(o.id, o.name, o.text) for o in result.outputs] == [
        ("ChatOutput-first", "First", "hi"),
        ("ChatOutput-second", "Second", "HI"),
    ]
    assert result.text == "hi"


@pytest.mark.parametrize(("text", "taken"), [("go left", "ChatOutput-yes"), ("go right", "ChatOutput-no")])
async def test_a_branch_that_was_not_taken_is_absent(run: Runner, text: str, taken: str) -> None:
    result = (await run(flows.router(), text)).result
    assert ids(result.outputs) == [taken]
    assert result.text == text


async def test_a_flow_without_an_output_component_gives_what_ends_it(run: Runner) -> None:
    output = await one(run, "def work(self) -> Message:\n    return Message(text=self.text + '!')")
    assert (output.id, output.type, output.output, output.kind, output.text) == (
        "Custom-it",
        "Custom",
        "out",
        OutputKind.MESSAGE,
        "hi!",
    )


async def test_c6_data(run: Runner) -> None:
    body = "def work(self) -> Data:\n    return Data(data={'text': self.text, 'n': 1})"
    output = await one(run, body, imports="from lfx.schema.data import Data")
    assert (output.kind, output.text, output.data) == (OutputKind.DATA, "hi", {"text": "hi", "n": 1})


async def test_c6_a_data_frame(run: Runner) -> None:
    body = "def work(self) -> DataFrame:\n    return DataFrame([{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}])"
    output = await one(run, body, imports="from lfx.schema.dataframe import DataFrame")
    assert output.kind is OutputKind.TABLE
    assert output.data == {"columns": ["a", "b"], "rows": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}


async def test_c6_a_list_of_data(run: Runner) -> None:
    body = "def work(self) -> list[Data]:\n    return [Data(data={'n': n}) for n in range(3)]"
    output = await one(run, body, imports="from lfx.schema.data import Data")
    assert (output.kind, output.data) == (OutputKind.LIST, [{"n": 0}, {"n": 1}, {"n": 2}])


async def test_c6_a_data_frame_shown_in_a_chat_output_is_a_message(run: Runner) -> None:
    body = "def work(self) -> DataFrame:\n    return DataFrame([{'a': 1}])"
    output = await one(run, body, output="ChatOutput", imports="from lfx.schema.dataframe import DataFrame")
    assert output.kind is OutputKind.MESSAGE
    assert "| a |" in (output.text or "").replace("   ", " ").replace("  ", " ")


async def test_c5_what_json_has_no_word_for(run: Runner) -> None:
    body = """
        def work(self) -> Data:
            return Data(data={
                "nan": float("nan"), "inf": [float("inf"), -float("inf")], "float32": np.float32(0.5),
                "int64": np.int64(7), "numpy nan": np.float64("nan"), "array": np.array([1.0, np.nan]),
                "bool": np.bool_(True),
                "time": pd.Timestamp("2026-01-02T03:04:05Z"), "no time": pd.NaT,
                "no value": pd.NA,
                "bytes": b"\\xff\\x00", "decimal": decimal.Decimal("1.10"), "bad decimal": decimal.Decimal("nan"),
                "date": datetime.date(2026, 1, 2), "span": datetime.timedelta(seconds=90),
                "uuid": uuid.UUID(int=1), "path": pathlib.PurePosixPath("/a/b"), "set": {2, 1}, "tuple": (1, 2),
                "enum": Colour.RED, "object": object(), "function": len, "model": Point(x=1), "huge": 10**30,
                "series": pd.Series([1, 2]), "frame": pd.DataFrame({"a": [1.0, float("nan")]}), 3: "number key",
                "surrogate": "\\ud800",
            })
    """
    imports = """
import datetime, decimal, enum, pathlib, uuid
import numpy as np
import pandas as pd
from pydantic import BaseModel
from lfx.schema.data import Data


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int
"""
    data = (await one(run, body, imports=imports)).data
    assert data["nan"] is None
    assert data["inf"] == [None, None]
    assert (data["float32"], data["int64"], data["numpy nan"], data["bool"]) == (0.5, 7, None, True)
    assert data["array"] == [1.0, None]
    assert (data["time"], data["no time"], data["no value"]) == ("2026-01-02T03:04:05+00:00", None, None)
    assert data["bytes"] == {"bytes": 2, "base64": "/wA="}
    assert (data["decimal"], data["bad decimal"], data["date"], data["span"]) == ("1.10", None, "2026-01-02", 90.0)
    assert (data["uuid"], data["path"]) == ("00000000-0000-0000-0000-000000000001", "/a/b")
    assert (data["set"], data["tuple"], data["enum"]) == ([1, 2], [1, 2], "red")
    assert data["object"] == {"unserialisable": "builtins.object"}
    assert data["function"] == {"unserialisable": "builtins.builtin_function_or_method"}
    assert (data["model"], data["huge"]) == ({"x": 1}, str(10**30))
    assert data["series"] == [1, 2]
    assert data["frame"] == {"columns": ["a"], "rows": [{"a": 1.0}, {"a": None}]}
    assert (data["3"], data["surrogate"]) == ("number key", "?")


async def test_c5_a_data_frame_with_nan(run: Runner) -> None:
    body = "def work(self) -> DataFrame:\n    return DataFrame([{'a': float('nan'), 'b': np.float32(1)}, {'a': 2.0}])"
    imports = "import numpy as np\nfrom lfx.schema.dataframe import DataFrame"
    output = await one(run, body, imports=imports)
    assert output.data["rows"] == [{"a": None, "b": 1.0}, {"a": 2.0, "b": None}]


async def test_c6_an_unserialisable_object_is_told_by_its_type(run: Runner) -> None:
    body = "def work(self) -> object:\n    import threading\n    return threading.Lock()"
    output = await one(run, body)
    assert output.kind is OutputKind.DATA
    assert output.data == {"unserialisable": "_thread.lock"}


async def test_c7_a_streaming_model_gives_its_full_text_to_every_component(run: Runner) -> None:
    flow = flows.llm(stream=True)
    text_out = flow.add("TextOutput", "TextOutput-out")
    flow.connect("ChatOutput-out", "message", text_out, "input_value")
    for streamed in (False, True):
        run.provider.script(Say("the whole long answer"))
        result = (await run(flow, "hi", stream=streamed)).result
        assert [(o.id, o.text) for o in result.outputs] == [
            ("ChatOutput-out", "the whole long answer"),
            ("TextOutput-out", "the whole long answer"),
        ]


async def test_c7_a_streaming_model_before_another_component(run: Runner) -> None:
    flow = flows.Flow("Stream into a component")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    made = flow.add("LanguageModelComponent", "LanguageModelComponent-llm", model=flows.STUB_MODEL, stream=True)
    shout = flow.custom(
        flows.component("def work(self) -> Message:\n    return Message(text=self.text.upper())"), "Custom-up"
    )
    out = flow.add("ChatOutput", "ChatOutput-out")
    flow.connect(chat_in, "message", made, "input_value")
    flow.connect(made, "text_output", shout, "text")
    flow.connect(shout, "out", out, "input_value")
    for streamed in (False, True):
        assert await run.text(flow, "hi", stream=streamed) == "ECHO: HI"


async def test_an_error_message_in_an_answers_place_is_an_error(run: Runner) -> None:
    body = "def work(self) -> Message:\n    return Message(text='Error: no luck', error=True, category='error')"
    with pytest.raises(RunFailed, match="Error: no luck") as caught:
        await run(flows.through(body, output=None), "hi")
    assert caught.value.info.component_id == "Custom-it"


async def test_a_flow_that_ends_without_output_is_an_error(run: Runner) -> None:
    flow = flows.Flow("Nothing ends")
    chat_in = flow.add("ChatInput", "ChatInput-in")
    fork = flow.add("ConditionalRouter", "ConditionalRouter-if", match_text="left", operator="contains")
    yes = flow.add("ChatOutput", "ChatOutput-yes")
    flow.connect(chat_in, "message", fork, "input_text")
    flow.connect(fork, "true_result", yes, "input_value")
    assert await run.text(flow, "go left") == "go left"
    with pytest.raises(EventFault) as caught:
        await run(flow, "go right")
    assert caught.value.info.code == "no_output"


async def test_an_input_alone_is_no_output(run: Runner) -> None:
    flow = flows.Flow("Only an input")
    flow.add("ChatInput", "ChatInput-in")
    with pytest.raises(EventFault) as caught:
        await run(flow, "hi")
    assert caught.value.info.code == "no_output"
