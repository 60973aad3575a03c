"""The fields of genai_config.json that this tool reads, and what each must be where it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = ("decoder", "dflash2", "mtp")  # that have a graph of this tool's kind


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def is_file_name(value: Any) -> bool:
    """Of a graph beside the configuration; another would be written outside the target."""
    return isinstance(value, str) and value not in ("", "..") and Path(value).name == value


def is_shared(value: Any) -> bool:
    return isinstance(value, list) and all(
        is_object(entry)
        and all(isinstance(entry.get(key), str) for key in ("name", "data_file"))
        and str(entry.get("offset")).isdecimal()
        for entry in value
    )


KINDS: dict[str, Callable[[Any], bool]] = {
    "an object": is_object,
    "a number above 0": is_count,
    "a number above 0, or none": lambda value: value in (None, 0) or is_count(value),
    "the name of a file in the same folder": is_file_name,
    "a list of weights with name, data_file and offset": is_shared,
}
FIELDS = {
    "model": "an object",
    "model.context_length": "a number above 0",
    "model.PART": "an object",
    "model.PART.filename": "the name of a file in the same folder",
    "model.PART.inputs": "an object",
    "model.PART.session_options": "an object",
    "model.PART.shared_initializers": "a list of weights with name, data_file and offset",
    "model.dflash2.sliding_window": "a number above 0, or none",
    "model.dflash2.num_draft_tokens": "a number above 0",
    "engine": "an object",
    "engine.dynamic_batching": "an object",
    "engine.dynamic_batching.block_size": "a number above 0",
    "engine.dynamic_batching.max_batch_size": "a number above 0",
    "speculative": "an object",
    "speculative.max_draft_tokens": "a number above 0",
}


def mistakes(config: dict[str, Any]) -> list[str]:
    """What is there but is not what it must be."""
    found = []
    for field, kind in FIELDS.items():
        for path in (field.replace("PART", part) for part in PARTS):
            for value in values_at(config, path.split(".")):
                line = f"genai_config.json: {path} is {shown(value)}, expected {kind}"
                if not KINDS[kind](value) and line not in found:
                    found.append(line)
    return found


def values_at(config: Any, path: list[str]) -> list[Any]:
    """The value there; none where it, or what it lies in, is missing or no object."""
    for key in path:
        if not is_object(config) or key not in config:
            return []
        config = config[key]
    return [config]


def shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
