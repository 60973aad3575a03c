"""The gated delta rule with carried state, and its replay."""

from __future__ import annotations

from typing import Literal, NamedTuple

from . import _core
from ._types import Array, Float32Array, Int32Array


class GatedDeltaNetResult(NamedTuple):
    """What gated_delta_net gives, in ONNX's order."""

    output: Array
    """T [tokens, value_heads, value_dim]; [sequences, length, ...] as the operands"""
    final_state: Float32Array
    """float32 [sequences, value_heads, value_dim, key_dim]"""
    state_update: Float32Array | None
    """float32 [sequences, row]; None when the capacity is 0"""


class ReplayGatedDeltaStateResult(NamedTuple):
    """What replay_gated_delta_state gives."""

    state: Float32Array
    """float32 [sequences, value_heads, value_dim, key_dim]"""


def gated_delta_net(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    cu_seqlens: Int32Array | None = None,
    *,
    decay: Array | None = None,
    beta: Array | None = None,
    initial_state: Float32Array | None = None,
    a_log: Float32Array | None = None,
    dt_bias: Float32Array | None = None,
    slots_in: Int32Array | None = None,
    slots_out: Int32Array | None = None,
    fresh: Int32Array | None = None,
    capture_count: Int32Array | None = None,
    state_update_active: bool | Int32Array = True,
    update_rule: Literal["linear", "gated", "delta", "gated_delta"] = "gated_delta",
    scale: float = 0.0,
    gate_activation: Literal["none", "softplus", "qwen", "sigmoid", "kda"] = "none",
    gate_lower_bound: float = -5.0,
    beta_activation: Literal["none", "sigmoid"] = "none",
    qk_l2_norm: bool = False,
    chunk_size: int = 64,
    state_update_capacity: int = 0,
    engine: Literal["auto", "recurrent", "chunked"] = "auto",
    out: tuple[Array | None, Float32Array | None, Float32Array | None] | None = None,
    threads: int = 1,
) -> GatedDeltaNetResult:
    """Gated delta rule over packed sequences (com.microsoft::GatedDeltaNet; arXiv:2412.06464).

    Each value head owns a state S [value_dim, key_dim]; value head h uses key head
    h // (value_heads // key_heads). For each token, in float32:

        q, k   = x * rsqrt(sum(x * x) + 1e-12)       with qk_l2_norm (1e-6 with the sigmoid gate)
        g      = decay                               gate_activation "none": the natural logarithm
                 -exp(a_log) * softplus(decay + dt_bias)                    "softplus" or "qwen"
                 gate_lower_bound * sigmoid(exp(a_log) * (decay + dt_bias)) "sigmoid" or "kda"
        a      = exp(g)                              1 without decay
        b      = beta, or sigmoid(beta)              1 without beta
        delta  = b * (value - a * (S @ k))           b * value for update_rule "linear", "gated"
        S      = a * S + outer(delta, k)
        output = scale * (S @ q), rounded to T       scale 0: 1 / sqrt(key_dim)

    Parameters
    ----------
    query, key : T [tokens, key_heads, key_dim]
    value : T [tokens, value_heads, value_dim]
        Alternatively all three as [sequences, length, heads, dim], without cu_seqlens. Or key
        and value are None and query holds the rows query, key, value packed: [tokens, row] or
        [sequences, length, row], with row = 2 * key_heads * key_dim + value_heads * value_dim;
        initial_state then tells the heads.
    cu_seqlens : int32 [sequences + 1]
        Where each sequence begins: 0 first, never decreasing, tokens last. Left out, the
        sequences of initial_state share the tokens evenly.
    decay : float32 or T [tokens, value_heads], or per key [tokens, value_heads, key_dim]
        Not for update_rule "linear" and "delta".
    beta : the type of decay [tokens, value_heads]
    initial_state : float32 [sequences, value_heads, value_dim, key_dim]
        Zeros when left out. With slots_in it is a pool [slots, value_heads, value_dim, key_dim].
    a_log : float32 [value_heads]
    dt_bias : float32 [value_heads], or per key [value_heads, key_dim] or [value_heads * key_dim]
        Both exactly when there is a gate_activation.
    slots_in, slots_out : int32 [sequences]
        The rows of the pool that each sequence reads and writes; a negative one skips the
        sequence, whose output is zeros. final_state is then the whole pool: initial_state with
        the rows in slots_out written, unless `out` hands memory in, of which those rows alone
        are written.
    fresh : int32 [sequences]
        Where it is not 0 the sequence starts from zeros and its state is not read.
    capture_count : int32 [sequences]
        How many tokens of each sequence state_update keeps, at most state_update_capacity;
        exactly when that is positive.
    state_update_active : bool, or int32 [1]
        False: state_update becomes zeros.
    update_rule, scale, gate_activation, gate_lower_bound, beta_activation, qk_l2_norm
        See above. gate_lower_bound is at most 0.
    chunk_size : int
        Taken for ONNX's sake; it changes nothing.
    state_update_capacity : int
    engine : str
        "chunked" computes the first length - length % 16 tokens of each sequence sixteen at a
        time, faster and within the tolerance of "recurrent", where decay is not per key, key_dim
        is at most 256 and the sequence captures nothing. "auto": the environment variable
        DELTAWORKS_ENGINE decides; without it, "recurrent".
    out : (output, final_state, state_update)
        Memory for the results, None where it is to be made. final_state may be initial_state
        itself.
    threads : int

    Returns
    -------
    GatedDeltaNetResult (output, final_state, state_update)
        A row of state_update holds the decay factors [capacity, value_heads] (per key:
        [capacity, value_heads, key_dim]), the normalised keys [capacity, key_heads, key_dim]
        and the deltas [capacity, value_heads, value_dim]; unused slots are zeros.
        replay_gated_delta_state reads it.

    Raises
    ------
    ValueError
        An argument does not fit; nothing is written then.
    """
    return GatedDeltaNetResult(
        *_core.gated_delta_net(
            query=query,
            key=key,
            value=value,
            cu_seqlens=cu_seqlens,
            decay=decay,
            beta=beta,
            initial_state=initial_state,
            a_log=a_log,
            dt_bias=dt_bias,
            slots_in=slots_in,
            slots_out=slots_out,
            fresh=fresh,
            capture_count=capture_count,
            state_update_active=state_update_active,
            update_rule=update_rule,
            scale=scale,
            gate_activation=gate_activation,
            gate_lower_bound=gate_lower_bound,
            beta_activation=beta_activation,
            qk_l2_norm=qk_l2_norm,
            chunk_size=chunk_size,
            state_update_capacity=state_update_capacity,
            engine=engine,
            out=out,
            threads=threads,
        )
    )


def replay_gated_delta_state(
    state: Float32Array,
    state_update: Float32Array,
    count: Int32Array,
    *,
    key_heads: int,
    state_update_capacity: int,
    out: tuple[Float32Array | None] | Float32Array | None = None,
    threads: int = 1,
) -> ReplayGatedDeltaStateResult:
    """The state that gated_delta_net had after the first `count` captured tokens, bit for bit.

    For each of them S = a * S + outer(delta, k), from the factors, keys and deltas in state_update.

    Parameters
    ----------
    state : float32 [sequences, value_heads, value_dim, key_dim]
        The state before the call that captured. Error messages call it initial_state.
    state_update : float32 [sequences, row]
        What that call gave; its width tells whether the decay is per key.
    count : int32 [sequences]
        0 to state_update_capacity each; 0 copies the state.
    key_heads, state_update_capacity : int
        As in that call.
    out : (state,) or the array alone
        Memory for the result; it may be `state` itself.
    threads : int

    Returns
    -------
    ReplayGatedDeltaStateResult (state,)

    Raises
    ------
    ValueError
        An argument does not fit; nothing is written then.
    """
    return ReplayGatedDeltaStateResult(
        *_core.replay_gated_delta_state(
            state=state,
            state_update=state_update,
            count=count,
            key_heads=key_heads,
            state_update_capacity=state_update_capacity,
            out=out,
            threads=threads,
        )
    )
