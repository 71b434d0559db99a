"""The audit of component sources: what could keep something for the next run is refused, what only reads is not."""

from __future__ import annotations

import textwrap

import pytest

from runtime.engine.accelerators.audit import reasons_against

COMPONENT = """
from lfx.custom import Component
{module}

class Probe(Component):
    inputs = []
    outputs = []
    {attributes}

    def build(self):
        {body}
"""


def _source(body: str = "pass", *, attributes: str = "pass", module: str = "") -> str:
    return COMPONENT.format(
        module=textwrap.dedent(module),
        attributes=textwrap.indent(textwrap.dedent(attributes), "    ").strip(),
        body=textwrap.indent(textwrap.dedent(body), " " * 8).strip(),
    )


KEEPS = {
    "a counter on the class": _source("Probe.count += 1", attributes="count = 0"),
    "a class attribute by type(self)": _source("type(self).last = self.text"),
    "a class attribute by __class__": _source("self.__class__.last = self.text"),
    "the class by another name": _source("mine = type(self)\nmine.last = self.text"),
    "the class by another name, by __class__": _source("mine = self.__class__\nmine.last = self.text"),
    "the class by another name, by its own": _source("mine = Probe\nmine.last = self.text"),
    "the class in a list": _source("[self.__class__][0].last = self.text"),
    "a helper that gets the class": _source("note(type(self))"),
    "a function by another name": _source("mine = helper\nmine.n = 1", module="def helper(): pass"),
    "a helper that gets a function": _source("note(helper)", module="def helper(): pass"),
    "the class by a walrus": _source("(mine := type(self)).last = self.text"),
    "several targets at once": _source("a, Probe.last = 1, self.text"),
    "a list of the class": _source("self.seen.append(1)", attributes="seen = []"),
    "a dict of the class": _source("self.seen['a'] = 1", attributes="seen = {}"),
    "an element of a nested table": _source("self.table['a'].append(1)", attributes="table = {'a': []}"),
    "an element reached by a loop": _source("for row in self.table: row['n'] = 1", attributes="table = [{'n': 0}]"),
    "an element by a name": _source("row = TABLE['a']\nrow['n'] = 1", module="TABLE = {'a': {'n': 0}}"),
    "the shared inputs": _source("type(self).inputs[0].value = 1"),
    "the shared inputs by the class's name": _source("Probe.inputs.append(1)"),
    "an alias": _source("seen = self.seen\nseen.append(1)", attributes="seen = []"),
    "a helper that gets it": _source("note(self.seen)", attributes="seen = []"),
    "what is returned": _source("return self.seen", attributes="seen = []"),
    "a global": _source("global count\ncount = 1", module="count = 0"),
    "a dict of the module": _source("CACHE['a'] = 1", module="CACHE = {}"),
    "a dict of the module, made conditionally": _source("CACHE['a'] = 1", module="if True:\n    CACHE = {}"),
    "an object of the module": _source("state.n = 1", module="class State: pass\nstate = State()"),
    "a method of an object of the module": _source("state.note(1)", module="state = make()"),
    "an attribute of a function": _source("helper.n = 1", module="def helper(): pass"),
    "a closure": _source(
        "count()",
        module="""
        def make():
            n = 0
            def count():
                nonlocal n
                n += 1
            return count
        count = make()
        """,
    ),
    "a decorator's closure": _source(
        "note()",
        module="""
        def counting(f):
            calls = []
            def inner():
                calls.append(1)
            return inner
        @counting
        def note(): pass
        """,
    ),
    "a default argument": _source("pass", module="def note(seen=[]): seen.append(1)"),
    "a default argument that is called": _source("pass", module="def note(seen=make()): pass"),
    "a cached function": _source("pass", module="@lru_cache\ndef f(): pass"),
    "a cached function with a size": _source("pass", module="@functools.lru_cache(maxsize=3)\ndef f(): pass"),
    "setattr on the class": _source("setattr(type(self), 'n', 1)"),
    "setattr on a function": _source("setattr(helper, 'n', 1)", module="def helper(): pass"),
    "globals": _source("globals()['n'] = 1"),
    "exec": _source("exec('x = 1')"),
    "deletion": _source("del self.seen['a']", attributes="seen = {'a': 1}"),
    "an event of threading": _source("DONE.set()", module="DONE = threading.Event()"),
    "a queue": _source("QUEUE.put(1)", module="QUEUE = queue.Queue()"),
    "the time of its making": _source("return self.born", attributes="born = time.time()"),
    "a random name": _source("return self.name", attributes="name = str(uuid.uuid4())"),
    "a tuple with a list": _source("PAIR[0].append(1)", module="PAIR = ([], 1)"),
    "a loop variable of the module": _source("row['n'] = 1", module="for row in ({'n': 0},):\n    pass"),
}

READS = {
    "nothing": _source(),
    "the class's name": _source("return f'{type(self)} {type(self).__name__} {self.__class__.__name__}'"),
    "whether it is of the class": _source("return isinstance(self, Probe) or type(self) is Probe"),
    "another of the class": _source("return type(self)()"),
    "a function in a thread": _source("asyncio.to_thread(helper, 1)\nhelper()", module="def helper(): pass"),
    "the type of something else": _source("kind = type(self.text)\nreturn NAMES[kind]", module="NAMES = {int: 'n'}"),
    "a class in an annotation": _source("def f(it: Probe | None) -> list[Probe]: pass\nown: Probe = None"),
    "its own attributes": _source("self.count = 1\nself.seen = []\nself.seen.append(1)"),
    "a constant of the class": _source("return self.kind", attributes="kind = 'a'"),
    "a table": _source("return self.names['a']", attributes="names = {'a': 1}"),
    "a table of functions": _source("return OPERATORS[k](1, 2)", module="OPERATORS = {'+': operator.add}"),
    "whether it is in a list": _source("return 'a' in KINDS", module="KINDS = ['a', 'b']"),
    "a loop over constants": _source("for k in KINDS: print(k)", module="KINDS = ['a', 'b']"),
    "a copy": _source("own = list(KINDS)\nown.append(1)", module="KINDS = ['a']"),
    "keys of a nested table": _source("return [k for k in TABLE.keys()]", module="TABLE = {'a': {'n': 1}}"),
    "a compiled pattern": _source("return PATTERN.sub('', 'a')", module="PATTERN = re.compile('a')"),
    "a closure within a call": _source("n = 0\ndef step():\n    nonlocal n\n    n += 1\nstep()"),
    "a local list": _source("rows = []\nrows.append(1)\nreturn rows"),
    "the time of a run": _source("return time.time()"),
}


@pytest.mark.parametrize("source", KEEPS.values(), ids=KEEPS.keys())
def test_what_could_keep_something_is_refused(source: str) -> None:
    assert reasons_against(source)


@pytest.mark.parametrize("source", READS.values(), ids=READS.keys())
def test_what_only_reads_is_not(source: str) -> None:
    assert reasons_against(source) == []
