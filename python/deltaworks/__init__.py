"""Operators of hybrid language models on the CPU, on numpy arrays.

Every operator is a function with the names of the ONNX operator's inputs and attributes:

    varlen_causal_conv, replay_conv_state            packed causal convolution, its replay
    gated_delta_net, replay_gated_delta_state        gated delta rule, its replay
    gated_delta_rates                                its gates from the raw projections
    dflash2_dynamic_conv                             convolution of block drafters
    linear_attention, causal_conv_with_state         the rule and the convolution of dense graphs
    paged_attention                                  attention over a cache in blocks

What holds for all of them:

*   T is float32, float16 or ml_dtypes.bfloat16; all operands of type T in one call have the same.
    Offsets, counts and slots are int32. An array of another type is an error: nothing is converted.
*   Rows (what the first index selects) are dense and may lie apart, as slices of a wider matrix do.
    For other layouts numpy.ascontiguousarray makes a copy that fits.
*   The result is a named tuple. ``out=`` takes a tuple of the same length with memory for the
    results; for None in it new memory is made. A final state in ``out`` may be the very array of
    the initial state, which is then updated in place.
*   ``threads`` is how many threads share the call. They start and end with it, which pays from
    about a millisecond of work on. The results do not depend on it.
*   The interpreter lock is released meanwhile. Leave the arrays of a running call alone.
*   An argument that does not fit raises ValueError before anything is written; the message names
    operator, argument, what came and what was expected. Something that is no numpy array where one
    is expected raises TypeError.
*   Any split of a sequence into calls, any packing and any number of threads give the same bits.

``onnxruntime_library()`` is the library that gives these operators to ONNX Runtime.
"""

from pathlib import Path

from ._causal_conv_with_state import CausalConvWithStateResult, causal_conv_with_state
from ._core import __version__, cpu_target
from ._dflash2_dynamic_conv import DFlash2DynamicConvResult, dflash2_dynamic_conv
from ._gated_delta_net import (
    GatedDeltaNetResult,
    ReplayGatedDeltaStateResult,
    gated_delta_net,
    replay_gated_delta_state,
)
from ._gated_delta_rates import GatedDeltaRatesResult, gated_delta_rates
from ._linear_attention import LinearAttentionResult, linear_attention
from ._paged_attention import PagedAttentionResult, paged_attention
from ._varlen_causal_conv import (
    ReplayConvStateResult,
    VarlenCausalConvResult,
    replay_conv_state,
    varlen_causal_conv,
)

__all__ = [
    "CausalConvWithStateResult",
    "DFlash2DynamicConvResult",
    "GatedDeltaNetResult",
    "GatedDeltaRatesResult",
    "LinearAttentionResult",
    "PagedAttentionResult",
    "ReplayConvStateResult",
    "ReplayGatedDeltaStateResult",
    "VarlenCausalConvResult",
    "__version__",
    "causal_conv_with_state",
    "cpu_target",
    "dflash2_dynamic_conv",
    "gated_delta_net",
    "gated_delta_rates",
    "linear_attention",
    "onnxruntime_library",
    "paged_attention",
    "replay_conv_state",
    "replay_gated_delta_state",
    "varlen_causal_conv",
]


def onnxruntime_library() -> str:
    """The path of the library that gives the operators to ONNX Runtime 1.23.2 or later.

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(deltaworks.onnxruntime_library())
    """
    return str(Path(__file__).with_name("libdeltaworks_onnxruntime.so"))
