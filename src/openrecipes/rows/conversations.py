"""Raw records to conversations: one shape, whatever the source calls its columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from openrecipes.errors import one_line
from openrecipes.rows.refusals import Refusal

#: ``from`` of the ``conversations`` form, as roles.
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bing": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
    "developer": "developer",
}


@dataclass(frozen=True)
class Conversation:
    """Messages in the order they were said, as a chat template expects them."""

    id: str | None
    messages: list[dict[str, Any]]
    tools: list[Any] | None


def parse_line(line: bytes) -> Any:
    """One JSONL line to a record; raises Refusal."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise Refusal("invalid-utf8", f"byte 0x{byte:02x} at offset {error.start}") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Refusal("broken-json", f"column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise Refusal("broken-json", "nesting too deep") from None
    except ValueError as error:  # an integer with thousands of digits
        raise Refusal("broken-json", one_line(error)) from None


def own_id(record: Any) -> str | int | float | None:
    """The id that a record gives itself, as it stands there, or None."""
    if isinstance(record, dict):
        for key in ("id", "conversation_id", "uuid"):
            if isinstance(given := record.get(key), str | int | float):
                return given
    return None


def record_id(record: Any) -> str | None:
    """The id that a record gives itself, as text for messages, or None."""
    given = own_id(record)
    return None if given is None else one_line(given)


def conversation(record: Any, *, arguments_as_mapping: bool) -> Conversation:
    """A record to a Conversation; raises Refusal.

    Args:
        record: a JSON object with ``messages`` (``role``, ``content``, ...) or
            ``conversations`` (``from``, ``value``), and optionally ``tools``.
        arguments_as_mapping: the chat template wants a tool call's arguments as a mapping, so
            arguments given as JSON text are parsed.
    """
    if not isinstance(record, dict):
        raise _broken(f"a JSON {type(record).__name__}, expected an object with messages")
    if record.get("messages") is not None:
        messages = _items(record["messages"], "messages")
    elif record.get("conversations") is not None:
        messages = _items(record["conversations"], "conversations")
    else:
        keys = ", ".join(map(str, list(record)[:8])) or "none"
        raise _broken(f"columns {keys}; expected messages or conversations")
    if not messages:
        raise _broken("messages is empty")
    return Conversation(
        record_id(record),
        [_message(m, n, arguments_as_mapping) for n, m in enumerate(messages)],
        _tools(record.get("tools")),
    )


def _message(message: Any, number: int, arguments_as_mapping: bool) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, dict):
        raise _broken(f"{where} is not an object")
    role = message.get("role")
    if role is None and "from" in message:
        message = _from_sharegpt(message, where)
        role = message["role"]
    if not isinstance(role, str) or not role:
        raise _broken(f"{where} has no role")
    made = dict(message)
    content = _content(message.get("content"), where)
    if content is None:
        if role != "assistant":
            # A template would print the word None here and train on it.
            raise _broken(f"{where} ({role}) has no content")
        if "content" in made:
            made["content"] = None
    else:
        made["content"] = content
    if "reasoning_content" not in made:
        for alias in ("reasoning", "thinking"):
            if isinstance(made.get(alias), str):
                made["reasoning_content"] = made[alias]
    if made.get("reasoning_content") is None:
        made.pop("reasoning_content", None)
    elif not isinstance(made["reasoning_content"], str):
        raise _broken(f"{where}: reasoning_content is not text")
    if "step_loss_mask" not in made and made.get("weight") is not None:
        made["step_loss_mask"] = made["weight"]
    if made.get("step_loss_mask") is None:
        made.pop("step_loss_mask", None)
    elif made["step_loss_mask"] not in (0, 1):
        raise _broken(f"{where}: step_loss_mask is {made['step_loss_mask']!r}, expected 0 or 1")
    calls = _optional(made.pop("tool_calls", None), f"{where}: tool_calls")
    if calls is not None:
        made["tool_calls"] = [_call(c, where, arguments_as_mapping) for c in calls]
    return made


def _from_sharegpt(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    said = message["from"]
    role = SHAREGPT_ROLES.get(said.lower()) if isinstance(said, str) else None
    if role is None:
        raise _broken(f"{where}: from is {said!r}, expected one of {', '.join(SHAREGPT_ROLES)}")
    made = {k: v for k, v in message.items() if k not in ("from", "value")}
    made["role"] = role
    made["content"] = message.get("value")
    if said.lower() == "function_call":
        made["tool_calls"] = _decoded(message.get("value"), f"{where}: function_call")
        if isinstance(made["tool_calls"], dict):
            made["tool_calls"] = [made["tool_calls"]]
        made["content"] = None
    return made


def _content(content: Any, where: str) -> str | None:
    """Text; a list of text parts is joined; parts that are not text are refused."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = []
        for part in content:
            text = part if isinstance(part, str) else None
            if isinstance(part, dict) and part.get("type", "text") == "text":
                text = part.get("text")
            if not isinstance(text, str):
                raise _broken(f"{where}: a content part is not text")
            texts.append(text)
        return "".join(texts)
    raise _broken(f"{where}: content is a {type(content).__name__}, expected text")


def _call(call: Any, where: str, arguments_as_mapping: bool) -> dict[str, Any]:
    """A tool call, with its function wrapped (OpenAI) or not (Qwen, Nemotron)."""
    if not isinstance(call, dict):
        raise _broken(f"{where}: a tool call is not an object")
    wrapped = isinstance(call.get("function"), dict)
    function = dict(call["function"] if wrapped else call)
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise _broken(f"{where}: a tool call has no name")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments_as_mapping:
        function["arguments"] = _decoded(arguments, f"{where}: arguments of {function['name']}")
    if arguments_as_mapping and not isinstance(function.get("arguments", {}), dict):
        if function["arguments"] is not None:
            raise _broken(f"{where}: arguments of {function['name']} are not an object")
        del function["arguments"]
    return {**call, "function": function} if wrapped else function


def _tools(tools: Any) -> list[Any] | None:
    items = [
        _decoded(tool, "a tool") if isinstance(tool, str) else tool
        for tool in _optional(tools, "tools") or []
    ]
    if not all(isinstance(tool, dict) for tool in items):
        raise _broken("a tool is not an object")
    return items or None


def _optional(value: Any, name: str) -> list[Any] | None:
    """A list, or None where there is none; data sets write that as null, "", or the text null."""
    if value is None or (isinstance(value, str) and value.strip() in ("", "null")):
        return None
    return _items(value, name)


def _items(value: Any, name: str) -> list[Any]:
    if isinstance(value, str):
        value = _decoded(value, name)
    if not isinstance(value, list):
        raise _broken(f"{name} is a {type(value).__name__}, expected a list")
    return value


def _decoded(text: Any, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise _broken(f"{name}: not JSON") from None


def _broken(detail: str) -> Refusal:
    return Refusal("broken-conversation", detail)


def texts(conversation: Conversation) -> Iterator[str]:
    """Every string of a conversation that can reach the rendered text."""
    for message in conversation.messages:
        for value in message.values():
            if isinstance(value, str):
                yield value
            else:
                yield from _strings(value)
    if conversation.tools:
        yield from _strings(conversation.tools)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    elif not (value is None or isinstance(value, int | float)):
        yield str(value)  # bytes and days of a parquet file: a template may print them
