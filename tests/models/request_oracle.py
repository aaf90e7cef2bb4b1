#!/usr/bin/env python3
"""Checks request bodies with the vendors' own SDK types.

Reads lines of JSON from standard input, each `{"protocol": ..., "body": ...}`, and prints one line for each: `ok`, or what
the types of the `openai` and `anthropic` packages refuse. Exits with 1 when one was refused.
"""
import json
import sys
import typing
import warnings

import pydantic
from anthropic.types import message_create_params as messages
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

TYPES = {
    "openai_responses": (responses.ResponseCreateParamsNonStreaming, responses.ResponseCreateParamsStreaming),
    "openai_chat": (chat.CompletionCreateParamsNonStreaming, chat.CompletionCreateParamsStreaming),
    "claude_messages": (messages.MessageCreateParamsNonStreaming, messages.MessageCreateParamsStreaming),
}


def drain(value):
    """Iterables are checked only when somebody walks over them."""
    if isinstance(value, dict):
        return {key: drain(inner) for key, inner in value.items()}
    if isinstance(value, (str, bytes, int, float, bool)) or value is None:
        return value
    return [drain(inner) for inner in value]


# The lazy iterables of a checked body need their adapter to stay alive.
ADAPTERS = {kind: pydantic.TypeAdapter(kind) for kinds in TYPES.values() for kind in kinds}


def check(protocol, body):
    plain, streaming = TYPES[protocol]
    kind = streaming if body.get("stream") else plain
    unknown = set(body) - set(typing.get_type_hints(kind))
    if unknown:
        return f"unknown fields {sorted(unknown)}"
    try:
        drain(ADAPTERS[kind].validate_python(body))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']} ({error.error_count()} in all)"
    return None


def main():
    warnings.simplefilter("ignore")
    refused = False
    for line in sys.stdin:
        case = json.loads(line)
        fault = check(case["protocol"], case["body"])
        refused |= fault is not None
        print(fault or "ok", flush=True)
    sys.exit(1 if refused else 0)


main()
