"""The depthwise causal convolution of dense graphs."""

from typing import Literal, NamedTuple

from . import _core
from ._types import Array


class CausalConvWithStateResult(NamedTuple):
    """What causal_conv_with_state gives, in ONNX's order."""

    output: Array
    """T, the shape of input"""
    present_state: Array
    """T [sequences, channels, history], or with channels_last [sequences, history, channels]"""


def causal_conv_with_state(
    input: Array,
    weight: Array,
    *,
    bias: Array | None = None,
    past_state: Array | None = None,
    activation: Literal["none", "silu", "swish"] = "none",
    dilation: int = 1,
    channels_last: bool = False,
    out: tuple[Array | None, Array | None] | None = None,
    threads: int = 1,
) -> CausalConvWithStateResult:
    """Depthwise causal convolution of sequences of one length (com.microsoft::CausalConvWithState).

    With history = (width - 1) * dilation, for token t of a sequence and each channel, in float32:

        acc    = bias, or 0
        acc    = fma(weight[j], x[t - history + j * dilation], acc)     for j = 0 ... width - 1
        output = activation(acc), rounded once to T;  silu(x) = x / (1 + exp(-x))

    Positions before the sequence read past_state; present_state is the last `history` samples
    of both, bit for bit. The bits are those of varlen_causal_conv.

    Parameters
    ----------
    input : T [sequences, channels, length], or with channels_last [sequences, length, channels]
    weight : T [channels, 1, width]
        The last tap is the token itself.
    bias : T [channels]
    past_state : T [sequences, channels, history], or with channels_last the last two swapped
        Zeros when left out.
    activation : "none", "silu" or "swish", which is silu
    dilation : int
    channels_last : bool
    out : (output, present_state)
        Memory for the results, None where it is to be made. present_state may be past_state
        itself.
    threads : int

    Returns
    -------
    CausalConvWithStateResult (output, present_state)

    Raises
    ------
    ValueError
        An argument does not fit; nothing is written then.
    """
    return CausalConvWithStateResult(
        *_core.causal_conv_with_state(
            input=input,
            weight=weight,
            bias=bias,
            past_state=past_state,
            activation=activation,
            dilation=dilation,
            channels_last=channels_last,
            out=out,
            threads=threads,
        )
    )
