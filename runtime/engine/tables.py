"""Table cells that are bound to variables. Pure.

In Langflow a cell of a table column may name a global variable (a header's value, say). The engine resolves such cells
from its database only: headless it would send the variable's name. A row's ``__load_from_db_fields`` says which of its
cells are bound; where a row does not say, a cell is a variable's name only if there is such a variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runtime.engine.export import Export, raw_nodes
from runtime.engine.needs import Need, NeedKind, Stage

_SAYS = "__load_from_db_fields"


def unset_cells(export: Export, variables: Mapping[str, str]) -> Iterator[Need]:
    """The bound cells whose variable is not set."""
    for node in export.nodes:
        for name, field in node.fields:
            if not field.get("show", True) or (node.id, name) in export.fed:
                continue
            for column, row in _cells(field):
                if _bound(row, column) and row[column] not in variables:
                    where = f"component {node.name!r} ({node.id}), column {column!r} of the table {name!r}"
                    text = f"set the variable {row[column]}: {where} reads it"
                    yield Need(NeedKind.VARIABLE, Stage.RUN, text, row[column], node.id, node.name, name)


def cell_names(data: Mapping[str, Any]) -> frozenset[str]:
    """What the cells of a graph's JSON hold that may name a variable."""
    return frozenset(
        row[column]
        for node in raw_nodes(data)
        for field in ((node.get("data") or {}).get("node", {}).get("template") or {}).values()
        for column, row in _cells(field)
        if _bound(row, column) is not False
    )


def fill_cells(data: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    """Put the variables' values into a graph's JSON."""
    for node in raw_nodes(data):
        template = (node.get("data") or {}).get("node", {}).get("template") or {}
        for field in template.values():
            for column, row in _cells(field):
                if _bound(row, column) is not False and row[column] in variables:
                    row[column] = variables[row[column]]
            for row in _rows(field):
                row.pop(_SAYS, None)


def _cells(field: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each (column, row) whose column may hold variables and whose cell holds a text."""
    columns = list(_columns(field))
    for row in _rows(field) if columns else ():
        yield from ((column, row) for column in columns if isinstance(row.get(column), str) and row[column])


def _columns(field: Any) -> Iterator[str]:
    if not isinstance(field, Mapping) or field.get("type") != "table":
        return
    schema = field.get("table_schema")
    described = schema.get("columns") if isinstance(schema, Mapping) else schema
    for column in described if isinstance(described, list) else ():
        if isinstance(column, Mapping) and column.get("load_from_db") and isinstance(column.get("name"), str):
            yield column["name"]


def _rows(field: Any) -> Iterable[dict[str, Any]]:
    if not isinstance(field, Mapping) or field.get("type") != "table":
        return ()
    rows = field.get("value")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else ()


def _bound(row: Mapping[str, Any], column: str) -> bool | None:
    """Whether a cell is bound to a variable; None where the row does not say."""
    says = row.get(_SAYS)
    if isinstance(says, Mapping):
        return bool(says[column]) if column in says else None
    return column in says if isinstance(says, list) else None
