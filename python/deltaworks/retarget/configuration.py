"""genai_config.json for the CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, helper

from .graph import Graph

LIBRARY = "libdeltaworks_onnxruntime.so"
PARTS = ("decoder", "dflash2", "mtp")  # that have a graph of this tool's kind
# Inputs that are caches in blocks, and states of a request, of which GenAI keeps two banks.
CACHES = {"PagedAttention": (3, 4)}
STATES = {"GatedDeltaNet": (6,), "VarlenCausalConvWithState": (4,)}
BANKS = 2
DEFAULT_DRAFTS = 4  # that GenAI verifies a step when the configuration says nothing

Config = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """As those of deltaworks.retarget.retarget."""

    keep_float16: bool
    int8_activations: bool
    cache_bytes: int
    max_batch_size: int | None
    link: bool


def refusals(config: Config) -> list[str]:
    """Why this is no package for this tool; nothing when it is one."""
    model = config.get("model")
    model = model if isinstance(model, dict) else {}
    decoder = model.get("decoder")
    if not isinstance(decoder, dict) or "filename" not in decoder:
        return ["genai_config.json names no model.decoder.filename: give the builder's folder"]
    reasons = []
    paged = "block_table" in decoder.get("inputs", {})
    if not paged or "dynamic_batching" not in config.get("engine", {}):
        reasons.append(
            "the cache is not paged, as the Engine needs it: build the package with "
            "--extra_options use_paged_attention=true (one of the builder's -e cpu runs as it is: "
            "docs/onnxruntime.md)"
        )
    for name, part in model.items():
        if isinstance(part, dict) and "filename" in part and name not in PARTS:
            reasons.append(f"model.{name} is not supported: build the package without it")
    return reasons


def parts(config: Config) -> dict[str, Config]:
    return {name: config["model"][name] for name in PARTS if name in config["model"]}


@dataclass(frozen=True)
class Memory:
    """What GenAI keeps: caches for each position of a block, states for each request."""

    position_bytes: int = 0
    request_bytes: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            self.position_bytes + other.position_bytes, self.request_bytes + other.request_bytes
        )


def memory_of(model: ModelProto) -> Memory:
    graph = Graph(model.graph)
    position = request = 0
    for node in model.graph.node:
        for index in CACHES.get(node.op_type, ()):
            position += bytes_of(graph, node.input[index], 2)
        for index in STATES.get(node.op_type, ()):
            request += bytes_of(graph, node.input[index], 1)
    return Memory(position, BANKS * request)


def bytes_of(graph: Graph, name: str, first: int) -> int:
    """Of a value without its leading extents."""
    extents = (graph.shape(name) or [])[first:]
    element = helper.tensor_dtype_to_np_dtype(graph.element_type(name))
    return math.prod(extents) * element.itemsize


def for_cpu(config: Config, memory: Memory, options: Options) -> list[str]:
    """Changes the configuration; what it changed."""
    changes = []
    for name, part in parts(config).items():
        session = part.setdefault("session_options", {})
        dropped = [key for key in session if key.startswith("ep.")]
        for key in dropped:
            del session[key]
        session["provider_options"] = []
        session["custom_ops_library"] = LIBRARY
        changes.append(f"model.{name}.session_options: no providers, custom_ops_library {LIBRARY}")
        changes += [f"model.{name}.session_options: {key} removed" for key in dropped]
        if part.pop("shared_initializers", None):
            # GenAI asks for a device's memory; the graphs name the same bytes of one file anyway.
            changes.append(f"model.{name}.shared_initializers: removed, the file is shared")
    drafter = config["model"].get("dflash2")
    if drafter and not drafter.get("sliding_window"):
        drafter["sliding_window"] = config["model"]["context_length"]
        changes.append(f"model.dflash2.sliding_window: {drafter['sliding_window']}, the context")
    return changes + batching(config, memory, options) + notes(config)


def batching(config: Config, memory: Memory, options: Options) -> list[str]:
    """Blocks for the cache's bytes, but no more than all requests at full length can fill."""
    section = config["engine"]["dynamic_batching"]
    section.pop("gpu_utilization_factor", None)
    if options.max_batch_size is not None:
        section["max_batch_size"] = options.max_batch_size
    size, requests = section["block_size"], section["max_batch_size"]
    most = requests * math.ceil(config["model"]["context_length"] / size)
    block_bytes = size * memory.position_bytes
    section["num_blocks"] = blocks = max(1, min(most, options.cache_bytes // block_bytes))
    return [
        f"engine.dynamic_batching: {blocks} blocks of {size} positions instead of "
        f"gpu_utilization_factor, {megabytes(blocks * block_bytes)}",
        f"engine.dynamic_batching: {requests} requests at once, "
        f"{megabytes(memory.request_bytes)} of state each",
    ]


def notes(config: Config) -> list[str]:
    """What limits drafts and was decided when the package was built."""
    model = config["model"]
    if not model["decoder"].get("state_update_capacity"):
        return [
            "note: no drafts can be verified; for up to 7 a step, build the package with "
            "--extra_options state_update_capacity=7"
        ]
    drafts = model.get("dflash2", {}).get("num_draft_tokens", 0)
    verified = config.get("speculative", {}).get("max_draft_tokens", DEFAULT_DRAFTS)
    if verified >= drafts:
        return []
    return [
        f"note: {verified} of the drafter's {drafts} tokens are verified a step; for all set "
        f"speculative.max_draft_tokens to {drafts} in genai_config.json"
    ]


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
