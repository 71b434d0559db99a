"""Components that would tell of another run if anything of it were left on their class or module.

Each answers with what it finds there and with its own input. ``LEAKING`` keep something, in one of the ways that Python
has; ``HARMLESS`` only read what is shared, or keep it on the instance.
"""

from __future__ import annotations

import copy
import textwrap
import uuid
from collections.abc import Mapping
from typing import Any

from tests.support.flows import Flow, component, component_index

LEAKING: Mapping[str, str] = {
    "class-counter": component(
        """
        count = 0

        def work(self) -> Message:
            Probe.count += 1
            return Message(text=f"{Probe.count} {self.text}")
        """,
        name="Probe",
    ),
    "type-of-self": component(
        """
        last = ""

        def work(self) -> Message:
            before, type(self).last = type(self).last, self.text
            return Message(text=f"{before} {self.text}")
        """,
        name="Probe",
    ),
    "dunder-class": component(
        """
        def work(self) -> Message:
            before = getattr(self, "last", "")
            self.__class__.last = self.text
            return Message(text=f"{before} {self.text}")
        """,
        name="Probe",
    ),
    "class-by-another-name": component(
        """
        def work(self) -> Message:
            mine = type(self)
            mine.last = getattr(mine, "last", "") + self.text
            return Message(text=mine.last)
        """,
        name="Probe",
    ),
    "class-in-a-list": component(
        """
        def work(self) -> Message:
            owner = [self.__class__][0]
            owner.count = getattr(owner, "count", 0) + 1
            return Message(text=f"{owner.count} {self.text}")
        """,
        name="Probe",
    ),
    "class-list": component(
        """
        seen = []

        def work(self) -> Message:
            self.seen.append(self.text)
            return Message(text=",".join(self.seen))
        """,
        name="Probe",
    ),
    "list-by-another-name": component(
        """
        seen = []

        def work(self) -> Message:
            mine = self.seen
            mine += [self.text]
            return Message(text=",".join(mine))
        """,
        name="Probe",
    ),
    "list-in-a-helper": component(
        """
        seen = []

        def work(self) -> Message:
            note(self.seen, self.text)
            return Message(text=",".join(self.seen))
        """,
        name="Probe",
        imports="def note(where, what):\n    where.insert(0, what)",
    ),
    "class-inputs": component(
        """
        def work(self) -> Message:
            type(self).inputs[0].info += "x"
            return Message(text=f"{type(self).inputs[0].info} {self.text}")
        """,
        name="Probe",
    ),
    "module-dict": component(
        """
        def work(self) -> Message:
            SEEN[self.text] = len(SEEN)
            return Message(text=repr(SEEN))
        """,
        name="Probe",
        imports="SEEN = {}",
    ),
    "module-global": component(
        """
        def work(self) -> Message:
            global count
            count += 1
            return Message(text=f"{count} {self.text}")
        """,
        name="Probe",
        imports="count = 0",
    ),
    "closure": component(
        """
        def work(self) -> Message:
            return Message(text=f"{count()} {self.text}")
        """,
        name="Probe",
        imports=textwrap.dedent(
            """
            def make():
                n = 0
                def count():
                    nonlocal n
                    n += 1
                    return n
                return count
            count = make()
            """
        ),
    ),
    "object-of-the-module": component(
        """
        def work(self) -> Message:
            state.n += 1
            return Message(text=f"{state.n} {self.text}")
        """,
        name="Probe",
        imports="class State:\n    n = 0\nstate = State()",
    ),
    "default-argument": component(
        """
        def note(self, seen=[]):
            seen.append(self.text)
            return seen

        def work(self) -> Message:
            return Message(text=",".join(self.note()))
        """,
        name="Probe",
    ),
    "cached-function": component(
        """
        def work(self) -> Message:
            first(1).append(self.text)
            return Message(text=",".join(first(1)))
        """,
        name="Probe",
        imports="from functools import lru_cache\n@lru_cache\ndef first(n):\n    return []",
    ),
    "attribute-of-a-function": component(
        """
        def work(self) -> Message:
            helper.n = getattr(helper, "n", 0) + 1
            return Message(text=f"{helper.n} {self.text}")
        """,
        name="Probe",
        imports="def helper():\n    pass",
    ),
    "function-by-another-name": component(
        """
        def work(self) -> Message:
            mine = helper
            mine.n = getattr(mine, "n", 0) + 1
            return Message(text=f"{mine.n} {self.text}")
        """,
        name="Probe",
        imports="def helper():\n    pass",
    ),
    "setattr": component(
        """
        def work(self) -> Message:
            setattr(type(self), "n", getattr(self, "n", 0) + 1)
            return Message(text=f"{type(self).n} {self.text}")
        """,
        name="Probe",
    ),
    "globals": component(
        """
        def work(self) -> Message:
            globals()["n"] = globals().get("n", 0) + 1
            return Message(text=f"{globals()['n']} {self.text}")
        """,
        name="Probe",
    ),
}

HARMLESS: Mapping[str, str] = {
    "counter-of-the-instance": component(
        """
        count = 0

        def work(self) -> Message:
            self.count += 1
            return Message(text=f"{self.count} {self.text}")
        """,
        name="Probe",
    ),
    "table": component(
        """
        def work(self) -> Message:
            return Message(text=f"{TABLE['a']} {self.text}")
        """,
        name="Probe",
        imports='TABLE = {"a": 1}',
    ),
    "own-list": component(
        """
        kinds = ["a", "b"]

        def work(self) -> Message:
            own = list(self.kinds)
            own.append(self.text)
            return Message(text=",".join(own))
        """,
        name="Probe",
    ),
}


def flow(name: str, code: str) -> dict[str, Any]:
    """ChatInput to a probe to ChatOutput, made without the engine's import."""
    made = Flow(name, flow_id=str(uuid.uuid5(uuid.NAMESPACE_OID, name)))
    chat_in, chat_out = made.add("ChatInput", "ChatInput-in"), made.add("ChatOutput", "ChatOutput-out")
    made.put("Probe", _node(code), "Probe-it")
    made.connect(chat_in, "message", "Probe-it", "text")
    made.connect("Probe-it", "out", chat_out, "input_value")
    return made.export()


def _node(code: str) -> dict[str, Any]:
    node = copy.deepcopy(component_index()["TextInput"])
    template = node["template"]
    template["code"]["value"] = code
    template["text"] = {**template.pop("input_value"), "name": "text", "display_name": "Text"}
    output = node["outputs"][0]
    node["outputs"] = [{**output, "name": "out", "display_name": "Out", "method": "work"}]
    return {**node, "display_name": "Probe", "field_order": ["text"]}
