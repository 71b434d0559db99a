"""``headrace keys``: who may use the gateway."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from runtime.cli.options import AsJson, RedisUrl, group, wait_for
from runtime.cli.output import FAILED, note, printable, say, say_json, table, when

app = group("API keys of the HTTP gateway.")


@app.command("create")
def create(
    *,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Whose key it is.", show_default=False)] = "",
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="TENANT", help="Only this tenant's. Default: all tenants.")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", metavar="SCOPE", help="send, read or admin; may be given again. Default: send, read."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="How long it is good: 90d, 12h. Default: for ever.")
    ] = None,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key and print it, this once: only its hash is kept.

    To rotate a key, make another, hand it out, and revoke the old one.
    """
    from shared_models.controls import check_id, check_label
    from shared_models.errors import EnvelopeInvalid
    from shared_models.route import parse_duration

    scopes = tuple(dict.fromkeys(scope or ["send", "read"]))
    if wrong := [one for one in scopes if one not in ("send", "read", "admin")]:
        raise typer.BadParameter(f"{wrong[0]!r} is no scope; there are send, read and admin")
    try:
        lives = parse_duration(expires) if expires else None
        check_label(name, field="NAME", limit=200)
        if tenant is not None:
            check_id(tenant, field="--tenant")
    except (ValueError, EnvelopeInvalid) as error:
        raise typer.BadParameter(str(error)) from error
    made, token = wait_for(_create(redis_url, name, tenant, scopes, lives))
    if as_json:
        say_json({**_row(made), "key": token})
        return
    note(f"key {made.id} for {tenant or 'all tenants'}: {', '.join(scopes)}; it is shown this once:")
    say(token)


async def _create(
    redis_url: str | None, name: str, tenant: str | None, scopes: tuple[str, ...], lives: float | None
) -> tuple[Any, str]:
    from runtime.broker.api_keys import ApiKey, new_token
    from runtime.cli.connection import connected

    token, key_id, digest = new_token()
    async with connected(redis_url) as broker:
        key = ApiKey(key_id, digest, scopes, name=name, tenant=tenant)
        return await broker.api_keys.add(key, lives=lives), token


@app.command("list")
def list_keys(*, redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """The keys, the oldest first. None of them can be shown again."""
    found = wait_for(_all(redis_url))
    if as_json:
        say_json([_row(key) for key in found])
        return
    rows = [
        (
            key.id,
            printable(key.name),
            printable(key.tenant) if key.tenant is not None else "(all)",
            ", ".join(key.scopes),
            when(key.created_at),
            _end(key.expires_at),
        )
        for key in found
    ]
    table(("id", "name", "tenant", "scopes", "created", "expires"), rows, empty="there are no API keys")


async def _all(redis_url: str | None) -> list[Any]:
    from runtime.cli.connection import connected

    async with connected(redis_url) as broker:
        return await broker.api_keys.all()


def _row(key: Any) -> dict[str, Any]:
    told = {"id": key.id, "name": key.name, "tenant": key.tenant, "scopes": list(key.scopes)}
    return {**told, "created_at": key.created_at, "expires_at": key.expires_at}


def _end(expires_at: int | None) -> str:
    if expires_at is None:
        return "never"
    return when(expires_at) + (" (expired)" if expires_at <= time.time() * 1000 else "")


@app.command("revoke")
def revoke(
    *, key_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)], redis_url: RedisUrl = None
) -> None:
    """End a key. Gateways know within three seconds."""
    if not wait_for(_revoke(redis_url, key_id)):
        note(f"headrace: there is no key {printable(key_id[:80])}")
        raise typer.Exit(FAILED)
    say(f"{key_id} is revoked")


async def _revoke(redis_url: str | None, key_id: str) -> bool:
    from runtime.cli.connection import connected

    async with connected(redis_url) as broker:
        return await broker.api_keys.revoke(key_id)
