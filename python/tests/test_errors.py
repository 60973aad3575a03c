"""What does not fit is refused, by name, and nothing is written."""

import deltaworks
import numpy as np
import pytest
from support import BFLOAT16, fresh_rng, offsets, poison


def call(**changed):
    rng = fresh_rng()
    arguments = {
        "input": rng.standard_normal((6, 8), np.float32),
        "weight": rng.standard_normal((8, 1, 3), np.float32),
        "cu_seqlens": offsets(2, 4),
        "initial_state": rng.standard_normal((2, 8, 2), np.float32),
    }
    out = tuple(poison(shape) for shape in [(6, 8), (2, 8, 2)])
    arguments |= {"out": (*out, None)} | changed
    try:
        deltaworks.varlen_causal_conv(**arguments)
    finally:
        if "out" not in changed:
            assert all(np.isnan(array).all() for array in out), "something was written"


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input": zeros(6, 7)}, "weight has shape [8, 1, 3], expected [7, 1, 3]"),
        ({"input": zeros(6)}, "input has rank 1 (shape [6]), expected rank 2"),
        (
            {"input": zeros(6, 8, dtype=np.float64)},
            "input has type float64, expected float32, float16 or bfloat16",
        ),
        ({"input": zeros(6, 8, dtype=BFLOAT16)}, "weight has type float32, expected bfloat16"),
        ({"input": zeros(6, 8, dtype=">f4")}, "input has type >f4, expected float32"),
        ({"cu_seqlens": offsets(2, 4).astype(np.int64)},
         "cu_seqlens has type int64, expected int32"),
        ({"cu_seqlens": zeros(3)}, "cu_seqlens has type float32, expected int32"),
        ({"cu_seqlens": offsets(2, 3)}, "cu_seqlens"),
        ({"cu_seqlens": zeros(dtype=np.int32)}, "cu_seqlens has rank 0, expected 1 to 5"),
        ({"activation": "relu"}, 'activation is "relu", expected none, silu or swish'),
        ({"dilation": 0}, "dilation is 0, expected at least 1"),
        ({"dilation": 2**70}, "dilation is 1180591620717411303424, expected an integer of 64"),
        ({"state_update_capacity": 2}, "capture_count is missing"),
        ({"threads": 0}, "threads is 0, expected at least 1"),
        ({"out": (None, None)}, "out is a tuple of 2, expected a tuple (output, final_state"),
        ({"out": zeros(6, 8)}, "out is of type ndarray, expected a tuple"),
        ({"out": (zeros(6, 9), None, None)}, "output has shape [6, 9], expected [6, 8]"),
        ({"out": (zeros(6, 8, dtype=np.float16), None, None)},
         "output has type float16, expected float32"),
        ({"out": (None, None, zeros(2, 2, 8))}, "state_update is given in out, expected None"),
        ({"slots_in": offsets(1)}, "slots_out is missing"),
    ],
)  # fmt: skip
def test_value_errors(changed, message):
    with pytest.raises(ValueError) as caught:
        call(**changed)
    assert str(caught.value).startswith("varlen_causal_conv: " + message)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input": [[1.0]]}, "input is of type list, expected a numpy array"),
        ({"input": None}, "input is None, expected a numpy array"),
        ({"cu_seqlens": (0, 6)}, "cu_seqlens is of type tuple, expected a numpy array"),
        ({"activation": 1}, "activation is of type int, expected a string"),
        ({"dilation": 1.5}, "dilation is of type float, expected an integer"),
        ({"out": (1, None, None)}, "output is of type int, expected a numpy array"),
    ],
)
def test_type_errors(changed, message):
    with pytest.raises(TypeError) as caught:
        call(**changed)
    assert str(caught.value) == "varlen_causal_conv: " + message


def unaligned(shape):
    count = int(np.prod(shape))
    return np.zeros(4 * count + 1, np.uint8)[1:].view(np.float32).reshape(shape)


@pytest.mark.parametrize(
    "array",
    [
        zeros(8, 6).T,
        zeros(6, 16)[:, ::2],
        zeros(6, 8)[::-1],
        np.broadcast_to(zeros(8), (6, 8)),
        unaligned((6, 8)),
        np.asfortranarray(zeros(6, 8)),
    ],
    ids=["transposed", "strided", "reversed", "repeated", "unaligned", "fortran"],
)
def test_layouts(array):
    with pytest.raises(ValueError, match=r"input has a layout .*numpy\.ascontiguousarray"):
        call(input=array)
    call(input=np.require(array, requirements=["C", "A", "O"]), out=None)
    if array.flags.writeable:
        with pytest.raises(ValueError, match="output has a layout"):
            call(out=(array, None, None))


def test_layouts_without_a_choice():
    """One row, or none, lies densely whatever its strides say."""
    one = {"input": np.broadcast_to(zeros(8), (1, 8))[::-1], "weight": zeros(8, 1, 1)}
    deltaworks.varlen_causal_conv(**one, cu_seqlens=offsets(1))
    none = one | {"input": zeros(3, 8)[::-1][:0], "initial_state": zeros(2, 8, 3)[::-1, :, :0]}
    result = deltaworks.varlen_causal_conv(**none, cu_seqlens=offsets(0, 0))
    assert result.final_state.shape == (2, 8, 0)


def test_read_only_arrays_are_read_and_not_written():
    array = zeros(6, 8)
    array.flags.writeable = False
    call(input=array, out=None)
    with pytest.raises(ValueError, match="output is read-only"):
        call(out=(array, None, None))


def test_results_must_not_overlap_operands():
    array = zeros(6, 8)
    with pytest.raises(ValueError, match="output overlaps input"):
        call(input=array, out=(array, None, None))


def test_the_counts_of_a_replay():
    state, update = zeros(2, 3, 4), zeros(2, 5, 3)
    with pytest.raises(ValueError, match=r"replay_conv_state: count\[1\] is 6, expected"):
        deltaworks.replay_conv_state(state, update, np.array([0, 6], np.int32))
    with pytest.raises(ValueError, match="replay_conv_state: state has type float32, expected"):
        deltaworks.replay_conv_state(
            state.astype(np.float16), update.astype(np.float16), np.zeros(2, np.int32), out=state
        )
    with pytest.raises(ValueError, match="replay_gated_delta_state: key_heads is 0"):
        deltaworks.replay_gated_delta_state(
            zeros(1, 1, 2, 2), zeros(1, 5), np.zeros(1, np.int32), key_heads=0,
            state_update_capacity=1,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_rule": "other"}, 'update_rule is "other", expected one of linear, gated'),
        ({"scale": float("nan")}, "scale is NaN"),
        ({"gate_lower_bound": 1.0}, "gate_lower_bound is 1"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"qk_l2_norm": 2}, "qk_l2_norm is 2, expected False or True"),
        ({"gate_activation": "softplus"}, "decay is missing"),
        ({"cu_seqlens": None}, "cu_seqlens is missing"),
        ({"value": None}, "value is missing"),
    ],
)
def test_errors_of_gated_delta_net(options, message):
    arguments = {"query": zeros(3, 1, 4), "key": zeros(3, 1, 4), "value": zeros(3, 2, 4)}
    with pytest.raises(ValueError) as caught:
        deltaworks.gated_delta_net(**arguments | {"cu_seqlens": offsets(3)} | options)
    assert str(caught.value).startswith("gated_delta_net: " + message)


def test_signatures_take_no_unknown_keyword():
    with pytest.raises(TypeError, match="alpha"):
        call(alpha=1)
