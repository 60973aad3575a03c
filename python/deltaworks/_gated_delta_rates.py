"""The gates of the gated delta rule from a layer's raw projections."""

from typing import Literal, NamedTuple

from . import _core
from ._types import Array


class GatedDeltaRatesResult(NamedTuple):
    """What gated_delta_rates gives."""

    update_rates: Array
    """T [..., value_heads]"""
    decay_factors: Array
    """float32 [..., value_heads]; with log_decay the factors' natural logarithms"""


def gated_delta_rates(
    update_logits: Array,
    decay_inputs: Array,
    a_log: Array,
    dt_bias: Array,
    *,
    arithmetic: Literal["float32", "activation"] = "float32",
    log_decay: bool | int = False,
    out: tuple[Array | None, Array | None] | None = None,
    threads: int = 1,
) -> GatedDeltaRatesResult:
    """Update rates and decays of the gated delta rule, in one pass.

    In ONNX deltaworks::GatedDeltaRates. Per token and value head h:

        update_rates  = sigmoid(update_logits)
        decay_factors = exp(-exp(a_log[h]) * softplus(decay_inputs + dt_bias[h]))

    Given to gated_delta_net as beta and, with log_decay, as decay, float32 results give the bits of
    its own gates. Numbers never give a NaN: an infinity counts as the largest finite float32.

    Parameters
    ----------
    update_logits, decay_inputs : T [..., value_heads]
        Up to 5 dims. With 2 of them rows may lie apart, as the halves of one projection do.
    a_log, dt_bias : float32 [value_heads]
    arithmetic : "float32" or "activation"
        With "activation" the sum and softplus are rounded to T.
    log_decay : bool
    out : (update_rates, decay_factors)
        Memory for the results, and not that of an input.
    threads : int

    Returns
    -------
    GatedDeltaRatesResult (update_rates, decay_factors)

    Raises
    ------
    ValueError
        An argument does not fit; nothing is written then.
    """
    return GatedDeltaRatesResult(
        *_core.gated_delta_rates(
            update_logits=update_logits,
            decay_inputs=decay_inputs,
            a_log=a_log,
            dt_bias=dt_bias,
            arithmetic=arithmetic,
            log_decay=log_decay,
            out=out,
            threads=threads,
        )
    )
