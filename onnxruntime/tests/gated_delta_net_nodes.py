"""GatedDeltaNet nodes in every form, and what they must compute."""

from dataclasses import dataclass

import numpy as np
from support import Node, offsets


@dataclass
class Problem:
    """Sizes and options of one node; `node` draws the operands."""

    lengths: tuple = (5, 1, 9)
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 16
    value_dim: int = 8
    dtype: type = np.float32
    gate_dtype: type = np.float32
    form: str = "separate"  # packed, rank4, packed_rank3, uniform
    update_rule: str = "gated_delta"
    activation: str = "none"  # softplus, qwen, sigmoid, kda: with sigmoid beta and the norm
    decay_per_key: bool = False
    dt_bias: str = "head"  # key, flat
    capacity: int = 0
    capture_count: tuple = ()
    active: int | None = None
    seed: int = 0

    @property
    def sequences(self):
        return len(self.lengths)

    @property
    def tokens(self):
        return sum(self.lengths)

    @property
    def row(self):
        decays = self.value_heads * (self.key_dim if self.decay_per_key else 1)
        keys, deltas = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return self.capacity * (decays + keys + deltas)

    def operands(self):
        rng = np.random.default_rng(self.seed)

        def normal(*shape):
            return rng.standard_normal(shape).astype(np.float32)

        n, hk, hv, k, v = (
            self.tokens,
            self.key_heads,
            self.value_heads,
            self.key_dim,
            self.value_dim,
        )
        key = normal(n, hk, k)
        key /= np.sqrt((key**2).sum(-1, keepdims=True)) + 1e-6
        raw = normal(n, hv, k) if self.decay_per_key else normal(n, hv)
        activated = self.activation != "none"
        return {
            "query": (0.5 * normal(n, hk, k)).astype(self.dtype),
            "key": key.astype(self.dtype),
            "value": (0.5 * normal(n, hv, v)).astype(self.dtype),
            "decay": (raw if activated else -np.abs(0.3 * raw)).astype(self.gate_dtype),
            "beta": (normal(n, hv) if activated else rng.uniform(0.2, 0.9, (n, hv))).astype(
                self.gate_dtype
            ),
            "initial_state": 0.3 * normal(self.sequences, hv, v, k),
            "a_log": 0.5 * normal(hv),
            "dt_bias": {
                "head": normal(hv),
                "key": normal(hv, k),
                "flat": normal(hv * k),
            }[self.dt_bias],
        }

    def spelled(self, operands):
        """The operands in the form's ranks."""
        spelled = {"cu_seqlens": offsets(self.lengths)} | operands
        if self.form.startswith("packed"):
            flat = [operands[name].reshape(self.tokens, -1) for name in ("query", "key", "value")]
            spelled["query"] = np.concatenate(flat, axis=1)
            spelled["key"] = spelled["value"] = None
        if self.form in ("rank4", "packed_rank3"):
            lead = (self.sequences, self.lengths[0] if self.lengths else 0)
            for name in ("query", "key", "value", "decay", "beta"):
                if spelled[name] is not None:
                    spelled[name] = spelled[name].reshape(*lead, *spelled[name].shape[1:])
        if self.form in ("rank4", "packed_rank3", "uniform"):
            spelled["cu_seqlens"] = None
        if self.update_rule in ("linear", "delta"):
            spelled["decay"] = None
        if self.update_rule in ("linear", "gated"):
            spelled["beta"] = None
        if self.activation == "none":
            spelled["a_log"] = spelled["dt_bias"] = None
        return {
            name: None if array is None else np.ascontiguousarray(array)
            for name, array in spelled.items()
        }

    def attributes(self):
        attributes = {"update_rule": self.update_rule}
        if self.activation != "none":
            attributes |= {"gate_activation": self.activation, "qk_l2_norm": 1}
            if self.update_rule in ("delta", "gated_delta"):
                attributes["beta_activation"] = "sigmoid"
        if self.capacity:
            attributes["state_update_capacity"] = self.capacity
        return attributes

    def node(self, *, without=(), outputs=("output", "final_state", "state_update"), **changed):
        operands = self.spelled(self.operands() | changed)
        if self.capacity:
            operands["capture_count"] = np.array(self.capture_count, np.int32)
        if self.active is not None:
            operands["state_update_active"] = np.array([self.active], np.int32)
        order = "query key value cu_seqlens decay beta initial_state a_log dt_bias capture_count"
        inputs = [
            (name, operands[name])
            if operands.get(name) is not None and name not in without
            else None
            for name in [*order.split(), "state_update_active"]
        ]
        while inputs[-1] is None:
            inputs.pop()
        lead = (self.tokens,)
        if self.form in ("rank4", "packed_rank3"):
            lead = (self.sequences, self.lengths[0] if self.lengths else 0)
        state = (self.sequences, self.value_heads, self.value_dim, self.key_dim)
        all_outputs = [
            ("output", self.dtype, (*lead, self.value_heads, self.value_dim)),
            ("final_state", np.float32, state),
            ("state_update", np.float32, (self.sequences, self.row)),
        ]
        kept = [output if output[0] in outputs else None for output in all_outputs]
        if not self.capacity:
            kept[2] = None
        while kept[-1] is None:
            kept.pop()
        return Node("GatedDeltaNet", inputs, kept, self.attributes())

    def capsule(self, update, sequence):
        """Decay factors, keys and deltas of one sequence, slot by slot."""
        c, hv, hk = self.capacity, self.value_heads, self.key_heads
        decay_shape = (c, hv, self.key_dim) if self.decay_per_key else (c, hv)
        sizes = [np.prod(decay_shape), c * hk * self.key_dim]
        decay, key, delta = np.split(update[sequence], np.cumsum(sizes))
        return (
            decay.reshape(decay_shape),
            key.reshape(c, hk, self.key_dim),
            delta.reshape(c, hv, self.value_dim),
        )


def replayed(problem, state, capsule, count):
    """Multiply, multiply, add in float32, as ONNX Runtime GenAI does on the CPU."""
    decay, key, delta = capsule
    state = state.copy()
    group = problem.value_heads // problem.key_heads
    for slot in range(count):
        for head in range(problem.value_heads):
            factor = decay[slot, head]  # one number, or one a column
            update = delta[slot, head][:, None] * key[slot, head // group][None, :]
            state[head] = state[head] * factor + update
    return state
