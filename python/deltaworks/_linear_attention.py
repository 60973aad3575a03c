"""The gated delta rule of dense graphs."""

from typing import Literal, NamedTuple

from . import _core
from ._types import Array


class LinearAttentionResult(NamedTuple):
    """What linear_attention gives, in ONNX's order."""

    output: Array
    """T [sequences, length, max(q_num_heads, kv_num_heads) * value_dim]"""
    present_state: Array
    """T or float32 [sequences, kv_num_heads, key_dim, value_dim]"""


def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    update_rule: Literal["linear", "gated", "delta", "gated_delta"] = "gated_delta",
    scale: float = 0.0,
    out: tuple[Array | None, Array | None] | None = None,
    threads: int = 1,
) -> LinearAttentionResult:
    """Gated delta rule over sequences of one length (com.microsoft::LinearAttention).

    Per state head with state S [key_dim, value_dim], for each token, in float32:

        a      = exp(decay);  r = S.T @ k;  p = S.T @ q
        delta  = beta * (value - a * r)      value alone for linear and gated
        S      = a * S + outer(k, delta)
        output = scale * (a * p + (q @ k) * delta), rounded once to T

    A token's output from the transposed state has the bits of gated_delta_net. Any split gives the
    same bits with a float32 state; a state of 16 bits is rounded once, when the call writes it.

    Parameters
    ----------
    query : T [sequences, length, q_num_heads * key_dim]
    key : T [sequences, length, key_heads * key_dim]
        key_heads follows from the width, and divides kv_num_heads.
    value : T [sequences, length, kv_num_heads * value_dim]
    q_num_heads, kv_num_heads : int
        Heads of the queries and of the states, either a multiple of the other.
    past_state : T or float32 [sequences, kv_num_heads, key_dim, value_dim]
        Zeros when left out; present_state is then of type T, unless `out` hands in a float32 one.
    decay : T [sequences, length, kv_num_heads], or [sequences, length, kv_num_heads * key_dim]
        Natural logarithms, per head or per key; gated and gated_delta need it.
    beta : T [sequences, length, kv_num_heads], or [sequences, length, 1]
        delta and gated_delta need it. A gate that the rule does not need is not read.
    update_rule : "linear", "gated", "delta" or "gated_delta"
    scale : float
        0 stands for 1 / sqrt(key_dim).
    out : (output, present_state)
        Memory for the results, None where it is to be made. present_state may be past_state
        itself.
    threads : int

    Returns
    -------
    LinearAttentionResult (output, present_state)

    Raises
    ------
    ValueError
        An argument does not fit; nothing is written then.
    """
    return LinearAttentionResult(
        *_core.linear_attention(
            query=query,
            key=key,
            value=value,
            q_num_heads=q_num_heads,
            kv_num_heads=kv_num_heads,
            past_state=past_state,
            decay=decay,
            beta=beta,
            update_rule=update_rule,
            scale=scale,
            out=out,
            threads=threads,
        )
    )
