"""The engine's chat memory functions, replaced by ones that work on the run's ChatOverlay.

``lfx.memory`` dispatches to ``lfx.memory.stubs`` at each call where no database is registered, so what is put there
takes effect for every component, saved code included; ``langflow.memory``, which old saved code imports, is served as
well. Their parameters are the engine's.
Imports lfx; loaded by LangflowEngine.prepare only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lfx.memory.flow_context import get_current_flow_id, should_persist_messages
from lfx.schema.message import Message
from lfx.utils.async_helpers import run_until_complete

from runtime.engine.memory import ChatOverlay, Record, select
from runtime.engine.plain import plain
from runtime.engine.standalone import put
from runtime.engine.state import CURRENT, RunState

_FIELDS = (
    *("id", "text", "sender", "sender_name", "session_id", "context_id", "timestamp", "files", "error", "edit"),
    *("properties", "category", "content_blocks", "session_metadata"),
)


def install() -> None:
    """Put the functions in place. May be repeated."""
    put(_FUNCTIONS, ["lfx.memory.stubs"], later=["langflow.memory"])


async def astore_message(
    message: Message, flow_id: Any = None, run_id: Any = None, user_id: Any = None
) -> list[Message]:
    """Append a message to its session; one whose id the session has is replaced."""
    if not message:
        return []
    scope = _scope(message.session_id)
    if scope is None:
        return [message]
    if not message.sender or not message.sender_name:
        raise ValueError(
            f"a message needs a sender and a sender's name; they are {message.sender!r}, {message.sender_name!r}"
        )
    chat, session = scope
    if known := getattr(message, "id", None):  # a new one has none, and needs no look at what a long session holds
        await chat.has(session, str(known))
    if flow_id:
        message.flow_id = str(flow_id)
    message.id = chat.put(session, record_of(message))["id"]
    return [message]


async def aget_messages(  # noqa: PLR0917  the engine's own signature
    sender: str | None = None,
    sender_name: str | None = None,
    session_id: Any = None,
    context_id: Any = None,
    order_by: str | None = "timestamp",
    order: str | None = "DESC",
    flow_id: Any = None,
    limit: int | None = None,
    user_id: Any = None,
) -> list[Message]:
    """The session's messages; newest first unless asked otherwise."""
    scope = _scope(session_id, reading=True)
    if scope is None:
        return []
    chat, session = scope
    wanted = {"sender": sender, "sender_name": sender_name, "context_id": context_id}
    records = await chat.messages(session)
    return [message_of(r) for r in select(records, wanted=wanted, newest_first=order == "DESC", limit=limit)]


async def aupdate_messages(messages: Message | list[Message]) -> list[Message]:
    """Replace messages by their id. One that was never stored is handed back unchanged."""
    updated = messages if isinstance(messages, list) else [messages]
    for message in updated:
        if (scope := _scope(message.session_id)) is not None and getattr(message, "id", None):
            chat, session = scope
            if await chat.has(session, str(message.id)):
                chat.put(session, record_of(message))
    return updated


async def adelete_messages(
    session_id: str | None = None, context_id: str | None = None, *, flow_id: Any = None, user_id: Any = None
) -> None:
    """Forget a session's messages, or those of one context."""
    if not session_id and not context_id:
        raise ValueError("Either session_id or context_id must be provided to delete messages.")
    state = _writing()
    if state is None:
        return
    if not context_id:
        state.chat.clear(_session(state, str(session_id)))
        return
    for session in state.chat.sessions():
        ids = [str(m["id"]) for m in await state.chat.messages(session) if m.get("context_id") == context_id]
        state.chat.remove(session, ids)


async def delete_message(id_: str) -> None:
    """Remove one message."""
    state = _writing()
    if state is not None and (session := await state.chat.find(str(id_))) is not None:
        state.chat.remove(session, [str(id_)])


async def aadd_messages(
    messages: Message | list[Message], flow_id: Any = None, run_id: Any = None, user_id: Any = None
) -> list[Message]:
    """Append several messages."""
    added = messages if isinstance(messages, list) else [messages]
    return [stored for message in added for stored in await astore_message(message, flow_id, run_id, user_id)]


async def aadd_messagetables(messages: Any, session: Any = None) -> list[Message]:
    """Append several messages, under the name that old code uses."""
    return await aadd_messages(messages)


def store_message(message: Message, flow_id: Any = None, run_id: Any = None, user_id: Any = None) -> list[Message]:
    """``astore_message`` from a thread."""
    stored: list[Message] = run_until_complete(astore_message(message, flow_id, run_id, user_id))
    return stored


def get_messages(*args: Any, **kwargs: Any) -> list[Message]:
    """``aget_messages`` from a thread."""
    messages: list[Message] = run_until_complete(aget_messages(*args, **kwargs))
    return messages


def delete_messages(*args: Any, **kwargs: Any) -> None:
    """``adelete_messages`` from a thread."""
    run_until_complete(adelete_messages(*args, **kwargs))


def add_messages(*args: Any, **kwargs: Any) -> list[Message]:
    """``aadd_messages`` from a thread."""
    added: list[Message] = run_until_complete(aadd_messages(*args, **kwargs))
    return added


def record_of(message: Any) -> Record:
    """A message as it is committed: strict JSON."""
    dumped: Mapping[str, Any] = message.model_dump()
    data = dumped.get("data") if isinstance(dumped.get("data"), Mapping) else {}
    values = {
        **{k: v for k, v in (data or {}).items() if k in _FIELDS},
        **{k: v for k, v in dumped.items() if v is not None},
    }
    record: Record = plain({name: values[name] for name in _FIELDS if values.get(name) is not None})
    if not isinstance(record.get("text"), str):
        record["text"] = ""  # a stream that has not been read yet; an update follows when it has
    return record


def message_of(record: Mapping[str, Any]) -> Any:
    """A committed message as the engine's own."""
    return Message(**{name: value for name, value in record.items() if name in _FIELDS})


def _scope(session_id: Any, *, reading: bool = False) -> tuple[ChatOverlay, str] | None:
    """The run's overlay and the session's name in it; None where nothing is to be remembered."""
    state = CURRENT.get() if reading else _writing()
    if state is None or not state.chat.enabled or not session_id:
        return None
    return state.chat, _session(state, str(session_id))


def _writing() -> RunState | None:
    return CURRENT.get() if should_persist_messages() else None


def _session(state: RunState, session: str) -> str:
    """A flow run by another keeps its own history: its messages are not its parent's."""
    flow_id = str(get_current_flow_id() or state.flow_id)
    return session if flow_id == state.flow_id else f"{flow_id}/{session}"


_FUNCTIONS = (
    *(astore_message, aget_messages, aupdate_messages, adelete_messages, delete_message, aadd_messages),
    *(aadd_messagetables, store_message, get_messages, delete_messages, add_messages),
)
