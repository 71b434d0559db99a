"""What old exports need to run on today's engine. Pure: tells by the saved code, since many carry no version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from runtime.engine.export import Export


class OldChat(StrEnum):
    """How an old chat component's code stores its message."""

    STORES = "store_message"
    SENDS = "send_message"


_SYNC_RESPONSE = re.compile(r"^\s+def message_response\(", re.M)


def old_chat_components(export: Export) -> Mapping[str, OldChat]:
    """The chat components whose saved code stores messages by blocking calls (Langflow 1.0 and 1.1), by id.

    The engine's calls of those names are coroutines or gone, so with a session id such code fails.
    """
    found = {}
    for node in export.nodes:
        if _SYNC_RESPONSE.search(node.code):
            if "self.store_message(" in node.code:
                found[node.id] = OldChat.STORES
            elif "self.send_message(" in node.code:
                found[node.id] = OldChat.SENDS
    return found
