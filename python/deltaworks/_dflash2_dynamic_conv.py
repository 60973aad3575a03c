"""Grouped dynamic convolution of block drafters (DFlash2)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from . import _core
from ._types import Array


class DFlash2DynamicConvResult(NamedTuple):
    """What dflash2_dynamic_conv gives."""

    output: Array
    """[rows, channels], of the residual's type; without one T"""


def dflash2_dynamic_conv(
    input: Array,
    dynamic: Array,
    base: Array,
    *,
    stage: Literal["prepare", "residual"] = "prepare",
    rows_per_lane: int,
    groups: int,
    residual: Array | None = None,
    arithmetic: Literal["float32", "activation"] = "float32",
    out: tuple[Array | None] | Array | None = None,
    threads: int = 1,
) -> DFlash2DynamicConvResult:
    """Convolution over the rows of draft blocks, with taps that depend on the row.

    In ONNX deltaworks::DFlash2DynamicConv.

    With s = 0 for stage "prepare" and 1 for "residual", for row r and channel c of group
    g = c // (channels // groups), over the taps j that lie in the lane of row r:

        coefficient  = base[s, j, c] + dynamic[r, (s * taps + j) * groups + g]
        output[r, c] = sum_j coefficient * input[r - j, c]
                       + residual[r, c]                              in stage "residual"

    Parameters
    ----------
    input : T [rows, channels]
        Lanes of rows_per_lane rows one after another.
    dynamic : T [rows, 2 * taps * groups]
        By stage, tap, group.
    base : T or bfloat16 [2, taps, channels]
        1 to 4 taps; tap 0 is the row itself.
    stage : "prepare" in front of a sublayer, "residual" behind it
    rows_per_lane, groups : int
    residual : T or float32 [rows, channels]
        Exactly in stage "residual".
    arithmetic : "float32" or "activation"
        Rounded to the output's type once, or to T after every step.
    out : (output,) or the array alone
        Memory for the result: T or float32, and not that of an input.
    threads : int

    Returns
    -------
    DFlash2DynamicConvResult (output,)

    Raises
    ------
    ValueError
        An argument does not fit; nothing is written then.
    """
    return DFlash2DynamicConvResult(
        *_core.dflash2_dynamic_conv(
            input=input,
            dynamic=dynamic,
            base=base,
            stage=stage,
            rows_per_lane=rows_per_lane,
            groups=groups,
            residual=residual,
            arithmetic=arithmetic,
            out=out,
            threads=threads,
        )
    )
