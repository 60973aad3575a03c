"""Packed depthwise causal convolution with carried state, and its replay."""

from __future__ import annotations

from typing import Literal, NamedTuple

from . import _core
from ._types import Array, Int32Array


class VarlenCausalConvResult(NamedTuple):
    """What varlen_causal_conv gives, in ONNX's order."""

    output: Array
    """T [tokens, channels]"""
    final_state: Array
    """T [sequences, channels, history]"""
    state_update: Array | None
    """T [sequences, state_update_capacity, channels]; None when the capacity is 0"""


class ReplayConvStateResult(NamedTuple):
    """What replay_conv_state gives."""

    state: Array
    """T [sequences, channels, history]"""


def varlen_causal_conv(
    input: Array,
    weight: Array,
    cu_seqlens: Int32Array,
    *,
    bias: Array | None = None,
    initial_state: Array | None = None,
    slots_in: Int32Array | None = None,
    slots_out: Int32Array | None = None,
    fresh: Int32Array | None = None,
    activation: Literal["none", "silu", "swish"] = "none",
    dilation: int = 1,
    capture_count: Int32Array | None = None,
    state_update_capacity: int = 0,
    kernel_delta: Array | None = None,
    previous_mask: Array | None = None,
    group_size: int = 1,
    delta_offset: int = 0,
    out: tuple[Array | None, Array | None, Array | None] | None = None,
    threads: int = 1,
) -> VarlenCausalConvResult:
    """Depthwise causal convolution of packed sequences (com.microsoft::VarlenCausalConvWithState).

    With history = (width - 1) * dilation, for token t of a sequence and each channel, in float32:

        acc    = bias, or 0
        acc    = fma(weight[j], x[t - history + j * dilation], acc)     for j = 0 ... width - 1
        output = activation(acc), rounded once to T;  silu(x) = x / (1 + exp(-x))

    Positions before the sequence read initial_state; final_state is the last `history` samples
    of both, bit for bit.

    The dynamic mode, with kernel_delta, takes width 2, dilation 1, no bias and no activation. For
    group g = c // group_size of channel c, each step rounded to T:

        now    = weight[c, 0, 1] + kernel_delta[t, delta_offset, g]
        before = weight[c, 0, 0] + kernel_delta[t, delta_offset + 1, g]
        output = now * x[t] + (before * x[t - 1]) * previous_mask[t]

    Parameters
    ----------
    input : T [tokens, channels]
        The sequences one after another.
    weight : T [channels, 1, width]
        The last tap is the token itself.
    cu_seqlens : int32 [sequences + 1]
        Where each sequence begins: 0 first, never decreasing, tokens last.
    bias : T [channels]
    initial_state : T [sequences, channels, history]
        Zeros when left out. With slots_in it is a pool [slots, channels, history].
    slots_in, slots_out : int32 [sequences]
        The rows of the pool that each sequence reads and writes; a negative one skips the
        sequence, whose output is zeros. final_state is then the whole pool: initial_state with
        the rows in slots_out written, unless `out` hands memory in, of which those rows alone
        are written.
    fresh : int32 [sequences]
        Where it is not 0 the sequence starts from zeros and its state is not read.
    activation : "none", "silu" or "swish", which is silu
    dilation : int
    capture_count : int32 [sequences]
        How many tokens of each sequence state_update keeps, at most state_update_capacity;
        exactly when that is positive.
    state_update_capacity : int
    kernel_delta : T [tokens, projected taps, channels / group_size]
    previous_mask : T [tokens, 1]
        Exactly with kernel_delta. It is a number, not a condition: 0 times NaN is NaN.
    group_size, delta_offset : int
        Of kernel_delta: how many consecutive channels share a value; the tap of the token itself.
    out : (output, final_state, state_update)
        Memory for the results, None where it is to be made. final_state may be initial_state
        itself.
    threads : int

    Returns
    -------
    VarlenCausalConvResult (output, final_state, state_update)

    Raises
    ------
    ValueError
        An argument does not fit; nothing is written then.
    """
    return VarlenCausalConvResult(
        *_core.varlen_causal_conv(
            input=input,
            weight=weight,
            cu_seqlens=cu_seqlens,
            bias=bias,
            initial_state=initial_state,
            slots_in=slots_in,
            slots_out=slots_out,
            fresh=fresh,
            activation=activation,
            dilation=dilation,
            capture_count=capture_count,
            state_update_capacity=state_update_capacity,
            kernel_delta=kernel_delta,
            previous_mask=previous_mask,
            group_size=group_size,
            delta_offset=delta_offset,
            out=out,
            threads=threads,
        )
    )


def replay_conv_state(
    state: Array,
    state_update: Array,
    count: Int32Array,
    *,
    out: tuple[Array | None] | Array | None = None,
    threads: int = 1,
) -> ReplayConvStateResult:
    """The state that varlen_causal_conv had after the first `count` captured tokens, bit for bit.

    It is the last `history` samples of state and state_update[:count] one after another.

    Parameters
    ----------
    state : T [sequences, channels, history]
        The state before the call that captured. Error messages call it initial_state.
    state_update : T [sequences, capacity, channels]
        What that call gave.
    count : int32 [sequences]
        0 to capacity each; 0 copies the state.
    out : (state,) or the array alone
        Memory for the result; it may be `state` itself.
    threads : int

    Returns
    -------
    ReplayConvStateResult (state,)

    Raises
    ------
    ValueError
        An argument does not fit; nothing is written then.
    """
    return ReplayConvStateResult(
        *_core.replay_conv_state(
            state=state, state_update=state_update, count=count, out=out, threads=threads
        )
    )
