"""Whether a component's source could keep anything on its class or its module from one run to the next. Pure.

The engine compiles a component's source anew for every run, so whatever it keeps there is gone with the run. A class
that is used again would keep it. The audit reads the source and gives every reason that it finds against; a source
without one only reads what its class and its module hold. It errs on the side of refusing: that costs time, not truth.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_OWN_COPY = frozenset({"inputs", "outputs"})
"""Class attributes of which every instance gets a copy when it is made."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_IMMUTABLE_CALLS = _words(
    "frozenset compile getLogger TypeVar namedtuple tuple str int float bool bytes Path getenv dedent NewType"
)
"""Calls whose results cannot be changed, or hold nothing of a run."""

_CHANGERS = _words(
    "append extend insert remove pop clear update setdefault popitem add discard sort reverse appendleft popleft"
    " extendleft rotate __setitem__ __delitem__ difference_update intersection_update symmetric_difference_update"
    " subtract move_to_end put put_nowait set send write"
)
_READERS = _words("keys index count issubset issuperset")
_READING_CALLS = _words("len str repr any all isinstance join range bool deepcopy")
_HARMLESS_CALLS = _words("isinstance issubclass super str repr to_thread")
"""What takes a class or a function and writes nothing to it."""
_FLAT_READERS = _READERS | _words("get values items copy union intersection difference")
_FLAT_READING_CALLS = _READING_CALLS | _words(
    "list dict tuple set frozenset sorted reversed enumerate zip sum min max iter map filter"
)
"""What reads a collection. The flat ones give its elements away, which matters where these can be changed too."""

_CACHES = _words("lru_cache cache cached cached_property singledispatch memoize alru_cache")
_REFLECTION = _words("globals vars exec eval __import__ locals")
_MOMENTS = _words(
    "now utcnow today time time_ns monotonic perf_counter uuid1 uuid4 random randint choice token_hex token_urlsafe"
    " getrandbits urandom"
)
"""Calls that give something else each time; at class level the engine asks them anew for every run."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COLLECTIONS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)


@dataclass
class _Names:
    """What a source defines outside of its functions."""

    classes: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    """Everything that the module defines, by name."""
    module_state: set[str] = field(default_factory=set)
    """Names of the module that hold what can be changed."""
    class_state: set[str] = field(default_factory=set)
    """Attributes of classes that hold what can be changed."""
    deep: set[str] = field(default_factory=set)
    """Those of both whose elements may be changed too."""


def reasons_against(source: str) -> list[str]:
    """Why a class of this source must not be used for a second run; empty if nothing speaks against it.

    Raises SyntaxError for what is not Python.
    """
    tree = ast.parse(source)
    names = _Names()
    _collect(tree.body, names, in_class=False)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    found: list[str] = []
    for node in ast.walk(tree):
        found.extend(_Look(names, parents).at(node))
    return list(dict.fromkeys(found))


def _collect(body: list[ast.stmt], names: _Names, *, in_class: bool) -> None:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            names.classes.add(statement.name)
            names.objects.add(statement.name)
            _collect(statement.body, names, in_class=True)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if not in_class:
                names.functions.add(statement.name)
                names.objects.add(statement.name)
        else:
            for target, value in _bindings(statement):
                _note(target, value, names, in_class=in_class)
            for inner in _blocks(statement):
                _collect(inner, names, in_class=in_class)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    yield from (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))
    yield from (handler.body for handler in getattr(statement, "handlers", []))


def _note(target: str, value: ast.expr | None, names: _Names, *, in_class: bool) -> None:
    if not in_class:
        names.objects.add(target)
    elif target in _OWN_COPY:
        return
    if value is None or _changeable(value):
        (names.class_state if in_class else names.module_state).add(target)
        if value is None or not _flat_literal(value, names.module_state):
            names.deep.add(target)


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that a statement binds, with what; None where that is not to be told."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.value
            elif isinstance(target, ast.Tuple | ast.List):
                yield from ((leaf.id, None) for leaf in ast.walk(target) if isinstance(leaf, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        yield statement.target.id, statement.value
    elif isinstance(statement, ast.For | ast.AsyncFor):
        yield from ((leaf.id, None) for leaf in ast.walk(statement.target) if isinstance(leaf, ast.Name))
    elif isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            if item.optional_vars is not None:
                yield from ((leaf.id, None) for leaf in ast.walk(item.optional_vars) if isinstance(leaf, ast.Name))


def _changeable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return _called(value) not in _IMMUTABLE_CALLS
    parts: list[ast.expr] = []
    if isinstance(value, ast.Tuple):
        parts = value.elts
    elif isinstance(value, ast.BinOp):
        parts = [value.left, value.right]
    elif isinstance(value, ast.IfExp):
        parts = [value.body, value.orelse]
    elif isinstance(value, ast.BoolOp):
        parts = value.values
    return isinstance(value, (*_COLLECTIONS, ast.NamedExpr, ast.Await, ast.Starred)) or any(map(_changeable, parts))


def _flat_literal(value: ast.expr, state: set[str]) -> bool:
    """A list, set or dict of constants, or of what others define: functions, types, members of an enumeration."""
    if isinstance(value, ast.Dict):
        return all(_constant(part, state) for part in value.values)
    return isinstance(value, ast.List | ast.Set | ast.Tuple) and all(_constant(part, state) for part in value.elts)


def _constant(value: ast.expr, state: set[str]) -> bool:
    if isinstance(value, ast.Tuple):
        return all(_constant(part, state) for part in value.elts)
    if isinstance(value, ast.UnaryOp):
        return _constant(value.operand, state)
    if isinstance(value, ast.Attribute):
        return _constant(value.value, state)
    if isinstance(value, ast.Name):
        return value.id not in state
    return isinstance(value, ast.Constant | ast.JoinedStr)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


@dataclass(frozen=True)
class _Look:
    """The rules, one method each."""

    names: _Names
    parents: dict[ast.AST, ast.AST]

    def at(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Global):
            yield f"global {', '.join(node.names)}"
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            yield from self._write(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        if isinstance(node, _FUNCTIONS):
            yield from self._function(node)
        if isinstance(node, ast.ClassDef):
            yield from self._decorators(node)
        if isinstance(node, ast.Name | ast.Attribute):
            yield from self._escape(node)
        yield from self._alias(node)

    def _write(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete) -> Iterator[str]:
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
        for target in (leaf for outer in targets for leaf in _flat(outer)):
            text = ast.unparse(target)
            if isinstance(target, ast.Attribute) and self._denotes_class(target.value):
                yield f"writes the class attribute {text}"
            elif isinstance(target, ast.Attribute) and (
                _name(target.value) in self.names.objects or self._shared(target.value)
            ):
                yield f"writes an attribute of what is shared: {text}"
            elif isinstance(target, ast.Subscript) and self._shared(target.value) and self._in_function(node):
                yield f"writes an item of {text}"
            elif isinstance(node, ast.AugAssign) and self._shared(target) and self._in_function(node):
                yield f"changes {text}"

    def _call(self, node: ast.Call) -> Iterator[str]:
        called = _called(node)
        if isinstance(node.func, ast.Attribute) and called in _CHANGERS and self._shared(node.func.value):
            yield f"calls {ast.unparse(node.func)}()"
        if isinstance(node.func, ast.Name) and called in _REFLECTION:
            yield f"calls {called}()"
        if called in {"setattr", "delattr", "__setattr__"} and node.args:
            owner = node.args[0]
            if self._denotes_class(owner) or _name(owner) in self.names.objects:
                yield f"calls {called}() on a class or an object of the module"
        if called in _MOMENTS and not self._in_function(node):
            yield f"{ast.unparse(node.func)}() is asked when the class is made"

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[str]:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None and _changeable(default):
                yield f"a default argument can be changed: {ast.unparse(default)}"
        yield from self._decorators(node)

    def _decorators(self, node: ast.AST) -> Iterator[str]:
        for decorator in getattr(node, "decorator_list", ()):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name in _CACHES:
                yield f"{name} keeps results"
            elif name in self.names.objects:
                yield f"the decorator {name} may keep something"

    def _escape(self, node: ast.Name | ast.Attribute) -> Iterator[str]:
        """Shared state that is handed to somebody who might change it."""
        if not isinstance(node.ctx, ast.Load) or not self._is_state(node) or not self._in_function(node):
            return
        parent = self.parents[node]
        deep = (node.id if isinstance(node, ast.Name) else node.attr) in self.names.deep
        if _only_looks(parent, node, deep=deep) or (not deep and _takes_elements(parent, node)):
            return
        yield f"{ast.unparse(node)} may be changed by whoever gets it"

    def _alias(self, node: ast.AST) -> Iterator[str]:
        """A class or a function under another name, or in other hands: what is written to it there is not seen."""
        if not self._is_definition(node) or not self._in_function(node) or self._in_annotation(node):
            return
        parent = self.parents[node]
        if isinstance(parent, ast.Attribute | ast.Compare | ast.FormattedValue | ast.ExceptHandler | ast.Raise):
            return
        if isinstance(parent, ast.Call) and (parent.func is node or _called(parent) in _HARMLESS_CALLS):
            return
        yield f"{ast.unparse(node)} may be written to by whoever gets it"

    def _is_definition(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name) and node.id in self.names.functions:
            return True
        if isinstance(node, ast.Call) and [_name(arg) for arg in node.args] != ["self"]:
            return False  # the type of something else
        return self._denotes_class(node)

    def _in_annotation(self, node: ast.AST) -> bool:
        while not isinstance(node, ast.stmt):
            above = self.parents[node]
            if node in (getattr(above, "annotation", None), getattr(above, "returns", None)):
                return True
            node = above
        return False

    def _is_state(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.names.module_state
        if isinstance(node, ast.Attribute) and node.attr in self.names.class_state:
            return _name(node.value) == "self" or self._denotes_class(node.value)
        return False

    def _shared(self, node: ast.AST) -> bool:
        """Whether an expression denotes what the class or the module holds, or a part of it."""
        if isinstance(node, ast.Subscript):
            return self._shared(node.value)
        if isinstance(node, ast.Attribute) and self._denotes_class(node.value):
            return True
        return self._is_state(node) or (isinstance(node, ast.Attribute) and self._shared(node.value))

    def _denotes_class(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id == "cls" or node.id in self.names.classes
        if isinstance(node, ast.Call):
            return _name(node.func) == "type"
        return isinstance(node, ast.Attribute) and node.attr == "__class__"

    def _in_function(self, node: ast.AST) -> bool:
        """Whether it runs with the component, not once when the class is made."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, _FUNCTIONS):
            above = self.parents.get(above)
        return above is not None


def _only_looks(parent: ast.AST, node: ast.AST, *, deep: bool) -> bool:
    """Whether ``parent`` reads ``node`` without handing it on."""
    if isinstance(parent, ast.IfExp):
        return parent.test is node
    if isinstance(parent, ast.Attribute):
        return parent.attr in (_READERS if deep else _FLAT_READERS)
    if isinstance(parent, ast.Call):
        return node in parent.args and _called(parent) in (_READING_CALLS if deep else _FLAT_READING_CALLS)
    return isinstance(parent, ast.Compare | ast.FormattedValue | ast.UnaryOp | ast.If)


def _takes_elements(parent: ast.AST, node: ast.AST) -> bool:
    """Whether ``parent`` takes elements out of ``node``, or makes a collection of its own of them."""
    if isinstance(parent, ast.Subscript):
        return parent.value is node and isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
        return parent.iter is node
    if isinstance(parent, ast.Dict):
        return any(k is None and v is node for k, v in zip(parent.keys, parent.values, strict=True))
    return isinstance(parent, ast.Starred | ast.BinOp)


def _flat(target: ast.AST) -> Iterator[ast.AST]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _flat(part)
    elif isinstance(target, ast.Starred):
        yield from _flat(target.value)
    else:
        yield target


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""
