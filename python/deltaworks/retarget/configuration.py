"""genai_config.json for the CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, NodeProto, helper

from ._refused import Refused
from .fields import PARTS, mistakes
from .graph import Graph

LIBRARY = "libdeltaworks_onnxruntime.so"
# Inputs that are caches in blocks, and states of a request, of which GenAI keeps two banks.
# The nodes tell: a configuration may leave out past_*_names, for which GenAI has defaults.
CACHES: dict[str, tuple[int, ...]] = {"PagedAttention": (3, 4)}
STATES: dict[str, tuple[int, ...]] = {"GatedDeltaNet": (6,), "VarlenCausalConvWithState": (4,)}
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
    if wrong := mistakes(config):
        return wrong
    model = config.get("model", {})
    decoder = model.get("decoder", {})
    if "filename" not in decoder:
        return ["genai_config.json names no model.decoder.filename: give the builder's folder"]
    reasons = [
        f"genai_config.json names no model.{name}.filename: build the package again"
        for name, part in parts(config).items()
        if "filename" not in part
    ]
    needed = {"block_size", "max_batch_size"} <= set(section(config))
    if not needed or "block_table" not in decoder.get("inputs", {}):
        reasons.append(
            "the cache is not paged, as the Engine needs it: build the package with "
            "--extra_options use_paged_attention=true (one of the builder's -e cpu is not for the "
            "Engine: docs/onnxruntime.md)"
        )
    for name, part in model.items():
        if isinstance(part, dict) and "filename" in part and name not in PARTS:
            reasons.append(f"model.{name} is not supported: build the package without it")
    if "context_length" not in model:
        reasons.append("genai_config.json names no model.context_length: build the package again")
    return reasons


def section(config: Config) -> Config:
    """engine.dynamic_batching; empty where there is none."""
    found: Config = config.get("engine", {}).get("dynamic_batching", {})
    return found


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


def memory_of(name: str, model: ModelProto) -> Memory:
    graph = Graph(model.graph)
    position = request = 0
    try:
        for node in model.graph.node:
            position += sum(bytes_of(graph, value, 2) for value in inputs(node, CACHES))
            request += sum(bytes_of(graph, value, 1) for value in inputs(node, STATES))
    except Refused as refused:
        raise Refused([f"{name}, {reason}" for reason in refused.reasons]) from None
    return Memory(position, BANKS * request)


def inputs(node: NodeProto, table: dict[str, tuple[int, ...]]) -> list[str]:
    indices = table.get(node.op_type, ())
    return [node.input[index] for index in indices if index < len(node.input)]


def bytes_of(graph: Graph, name: str, leading: int) -> int:
    """Of a value without its leading extents."""
    shape, kind = graph.shape(name), graph.element_type(name)
    if shape is None or kind == 0 or min(shape[leading:], default=0) < 1:
        raise Refused(
            [
                f"the cache or state {name}: the graph does not tell its type and its extents "
                f"(-1 is an unknown one: {shape}), of which memory is planned: build the package "
                "again"
            ]
        )
    return math.prod(shape[leading:]) * helper.tensor_dtype_to_np_dtype(kind).itemsize


def for_cpu(config: Config, memories: dict[str, Memory], options: Options) -> list[str]:
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
    return changes + batching(config, memories, options) + notes(config)


def batching(config: Config, memories: dict[str, Memory], options: Options) -> list[str]:
    """Blocks for the cache's bytes, but no more than all requests at full length can fill."""
    changed = section(config)
    changed.pop("gpu_utilization_factor", None)
    size, wanted = changed["block_size"], options.max_batch_size or changed["max_batch_size"]
    pool = sum((m for name, m in memories.items() if name != "dflash2"), Memory())
    block_bytes = max(1, size * pool.position_bytes)
    affordable = max(1, options.cache_bytes // block_bytes)
    window = window_blocks(config, memories, pool)
    if affordable <= window:
        raise Refused(
            [
                f"the caches have {mebibytes(options.cache_bytes)}, but one request needs more "
                f"than {mebibytes(window * block_bytes)} for the drafter's window of "
                f"{config['model']['dflash2']['sliding_window']} positions: give larger caches, "
                "or set a smaller model.dflash2.sliding_window"
            ]
        )
    # Windows leave half of the blocks, where they can, to the requests' own positions.
    requests = min(wanted, max(1, affordable // (2 * window))) if window else wanted
    changed["max_batch_size"] = requests
    context = config["model"]["context_length"]
    most = requests * (math.ceil(context / size) + window)
    changed["num_blocks"] = blocks = min(most, affordable)
    enough = f", all that {requests} requests of {context} positions need" if blocks == most else ""
    windows = f", {requests * window} of them for the drafter's windows" if window else ""
    fewer = f" instead of {wanted}, whose windows take too many blocks" if requests < wanted else ""
    return [
        f"engine.dynamic_batching: {blocks} blocks of {size} positions instead of "
        f"gpu_utilization_factor, {mebibytes(blocks * block_bytes)}{enough}{windows}",
        f"engine.dynamic_batching: {requests} requests at once{fewer}, "
        f"{mebibytes(sum(m.request_bytes for m in memories.values()))} of state each",
    ]


def window_blocks(config: Config, memories: dict[str, Memory], pool: Memory) -> int:
    """What the Engine reserves of num_blocks for each request's window of the drafter.

    It refuses to start unless more blocks are there; a position of the drafter counts as many
    positions of the decoder as have its bytes (GenAI 0.18, seen).
    """
    drafter = config["model"].get("dflash2")
    if not drafter:
        return 0
    blocks: int = math.ceil(drafter["sliding_window"] / section(config)["block_size"]) + 2
    return blocks * math.ceil(memories["dflash2"].position_bytes / max(1, pool.position_bytes))


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


def mebibytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
