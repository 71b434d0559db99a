"""The OpenAPI document: what FastAPI makes of the handlers, and what it cannot see."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from runtime.gateway.problems import ProblemDocument

_REF = "#/components/schemas/{model}"
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`hr_…`, from `headrace keys create`."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def document(app: FastAPI, *, keys: bool) -> dict[str, Any]:
    """The document of an app. ``keys``: whether its requests need an API key."""
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    # Never answered: a request that is not valid gets a problem like every other error.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(_schemas(ProblemDocument))
    components["securitySchemes"] = _SCHEMES
    for path, operations in made["paths"].items():
        for operation in operations.values():
            _without_default_422(operation)
            if keys and path.startswith("/v1/") and not path.startswith("/v1/webhooks/"):
                operation["security"] = [{name: []} for name in _SCHEMES]
    return made


def _without_default_422(operation: dict[str, Any]) -> None:
    told = operation.get("responses", {}).get("422", {})
    if "HTTPValidationError" in str(told.get("content")):
        operation["responses"]["422"] = {
            "description": "The request is not valid.",
            "content": {"application/problem+json": {"schema": {"$ref": _REF.format(model="ProblemDocument")}}},
        }


def _schemas(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=_REF)
    return {**schema.pop("$defs", {}), model.__name__: schema}
