"""PagedAttention nodes and their result in float64."""

from dataclasses import dataclass, field

import numpy as np
from support import Node, offsets


@dataclass
class Problem:
    lengths: tuple = (3, 1, 5)
    past: tuple = (0, 7, 4)
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 4
    blocks: int = 16
    max_blocks: int = 4
    dtype: type = np.float32
    packed: bool = False
    norm: bool = False
    sink: bool = False
    rotary_dim: int = 0
    slot_mapping: tuple | None = None
    seed: int = 0
    attributes: dict = field(default_factory=dict)

    def operands(self):
        rng = np.random.default_rng(self.seed)

        def normal(*shape, scale=1.0, shift=0.0):
            drawn = shift + scale * rng.standard_normal(shape)
            return drawn.astype(np.float32).astype(self.dtype)

        n, d = sum(self.lengths), self.head_dim
        cache = (self.blocks, self.block_size, self.kv_heads, d)
        pages = rng.permutation(self.blocks)[: len(self.lengths) * self.max_blocks]
        table = pages.reshape(len(self.lengths), self.max_blocks).astype(np.int32)
        for b, (past, length) in enumerate(zip(self.past, self.lengths, strict=True)):
            table[b, -(-(past + length) // self.block_size) :] = -1
        angles = rng.uniform(0, 6, (self.max_blocks * self.block_size, self.rotary_dim // 2))
        return {
            "query": normal(n, self.heads * d),
            "key": normal(n, self.kv_heads * d),
            "value": normal(n, self.kv_heads * d),
            "key_cache": normal(*cache),
            "value_cache": normal(*cache),
            "cumulative_sequence_length": offsets(self.lengths),
            "past_seqlens": np.array(self.past, np.int32),
            "block_table": table,
            "cos_cache": np.cos(angles).astype(np.float32).astype(self.dtype),
            "sin_cache": np.sin(angles).astype(np.float32).astype(self.dtype),
            "slot_mapping": None
            if self.slot_mapping is None
            else np.array(self.slot_mapping, np.int32),
            "head_sink": normal(self.heads),
            "q_norm_weight": normal(d, scale=0.2, shift=1.0),
            "k_norm_weight": normal(d, scale=0.2, shift=1.0),
        }

    def node(self, *, cache_outputs=True, without=(), **changed):
        operands = self.operands() | changed
        absent = set(without)
        if not self.rotary_dim:
            absent |= {"cos_cache", "sin_cache"}
        if not self.norm:
            absent |= {"q_norm_weight", "k_norm_weight"}
        if not self.sink:
            absent |= {"head_sink"}
        if self.packed:
            parts = [operands[name] for name in ("query", "key", "value")]
            operands["query"] = np.concatenate(parts, axis=1)
            absent |= {"key", "value"}
        inputs = [
            None if name in absent or array is None else (name, array)
            for name, array in operands.items()
        ]
        while inputs[-1] is None:
            inputs.pop()
        cache = operands["key_cache"].shape
        outputs = [("output", self.dtype, (sum(self.lengths), self.heads * self.head_dim))]
        if cache_outputs:
            outputs += [(f"{name}_cache_out", self.dtype, cache) for name in ("key", "value")]
        attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads} | self.attributes
        if self.rotary_dim:
            attributes["do_rotary"] = 1
        return Node("PagedAttention", inputs, outputs, attributes)


def rms_norm(rows, weight, epsilon):
    return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + epsilon) * weight


def rotate(head, cos, sin, interleaved, offset):
    head, width = head.copy(), 2 * len(cos)
    part = head[offset : offset + width]
    first = np.arange(0, width, 2) if interleaved else np.arange(width // 2)
    second = first + (1 if interleaved else width // 2)
    a, b = part[first].copy(), part[second].copy()
    part[first], part[second] = a * cos - b * sin, b * cos + a * sin
    return head


def prepared(problem, operands, position_of):
    """Query and key heads after norm and rotary embedding."""
    attributes = problem.attributes
    heads = {}
    for name, count in (("query", problem.heads), ("key", problem.kv_heads)):
        rows = operands[name].reshape(sum(problem.lengths), count, problem.head_dim)
        if problem.norm:
            epsilon = attributes.get("qk_norm_epsilon", 1e-6)
            rows = rms_norm(rows, operands[f"{name[0]}_norm_weight"], epsilon)
        if problem.rotary_dim:
            turn = attributes.get("rotary_interleaved", 0), attributes.get("rotary_offset", 0)
            for token, position in enumerate(position_of):
                cos, sin = operands["cos_cache"][position], operands["sin_cache"][position]
                for head in range(rows.shape[1]):
                    rows[token, head] = rotate(rows[token, head], cos, sin, *turn)
        heads[name] = rows
    return heads["query"], heads["key"]


def attend(problem, query, head, cached, visible, sink):
    """One row of one head over the visible positions."""
    kv = head // (problem.heads // problem.kv_heads)
    keys, values = (part[visible, kv] for part in cached)
    scale = problem.attributes.get("scale", 0) or problem.head_dim**-0.5
    logits = keys @ query * scale
    if softcap := problem.attributes.get("softcap", 0):
        logits = softcap * np.tanh(logits / softcap)
    joined = logits if sink is None else np.append(logits, sink[head])
    weights = np.exp(logits - joined.max())
    return weights @ values / np.exp(joined - joined.max()).sum()


def reference(problem):
    """output, key cache and value cache."""
    operands = {
        name: array if array is None or array.dtype == np.int32 else array.astype(np.float64)
        for name, array in problem.operands().items()
    }
    starts = operands["cumulative_sequence_length"]
    position_of = [
        past + t
        for length, past in zip(problem.lengths, problem.past, strict=True)
        for t in range(length)
    ]
    query, key = prepared(problem, operands, position_of)
    value = operands["value"].reshape(key.shape)
    caches = [operands[f"{name}_cache"].reshape(-1, *key.shape[1:]) for name in ("key", "value")]
    output = np.zeros_like(query)
    window = problem.attributes.get("local_window_size", -1)
    for b, (length, past) in enumerate(zip(problem.lengths, problem.past, strict=True)):
        pages = operands["block_table"][b][:, None] * problem.block_size
        rows = (pages + np.arange(problem.block_size)).reshape(-1)
        for t in range(length):
            token = starts[b] + t
            slot = rows[past + t] if problem.slot_mapping is None else problem.slot_mapping[token]
            if slot >= 0:
                for cache, new in zip(caches, (key, value), strict=True):
                    # The cache holds the type's numbers.
                    cache[slot] = new[token].astype(problem.dtype).astype(np.float64)
        cached = [cache[rows[: past + length]] for cache in caches]
        for t in range(length):
            last = past + t if problem.attributes.get("is_causal", 1) else past + length - 1
            first = max(0, past + t - window + 1) if window > 0 else 0
            for head in range(problem.heads):
                output[starts[b] + t, head] = attend(
                    problem,
                    query[starts[b] + t, head],
                    head,
                    cached,
                    slice(first, last + 1),
                    operands["head_sink"] if problem.sink else None,
                )
    shape = operands["key_cache"].shape
    return {
        "output": output.reshape(operands["query"].shape),
        "key_cache_out": caches[0].reshape(shape),
        "value_cache_out": caches[1].reshape(shape),
    }
