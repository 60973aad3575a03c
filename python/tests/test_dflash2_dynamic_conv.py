import deltaworks
import numpy as np
import pytest
from support import BFLOAT16, TYPES, close, fresh_rng, normal, pitched, poison, same_bits, type_name


def reference(case, stage, lane):
    x, dynamic, base = (case[name].astype(np.float64) for name in ("input", "dynamic", "base"))
    taps, channels = base.shape[1:]
    half = stage == "residual"
    dynamic = dynamic.reshape(len(x), 2, taps, -1)[:, int(half)]
    dynamic = np.repeat(dynamic, channels // dynamic.shape[2], axis=2)
    output = case["residual"].astype(np.float64) if half else np.zeros_like(x)
    for row in range(len(x)):
        for tap in range(min(taps, row % lane + 1)):
            output[row] += (base[int(half), tap] + dynamic[row, tap]) * x[row - tap]
    return output


def problem(dtype=np.float32, lanes=3, rows_per_lane=5, channels=24, groups=4, taps=2, base=None):
    rng, rows = fresh_rng(), lanes * rows_per_lane
    case = {
        "input": normal(rng, rows, channels, dtype=dtype),
        "dynamic": normal(rng, rows, 2 * taps * groups, dtype=dtype),
        "base": normal(rng, 2, taps, channels, dtype=base or dtype),
    }
    return case, {"rows_per_lane": rows_per_lane, "groups": groups}


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("base", ["same", "bfloat16"])
@pytest.mark.parametrize("dtype", TYPES, ids=type_name)
def test_agrees_with_the_reference(dtype, base, taps):
    case, sizes = problem(dtype, taps=taps, base=BFLOAT16 if base == "bfloat16" else dtype)
    (output,) = deltaworks.dflash2_dynamic_conv(**case, **sizes)
    close(output, reference(case, "prepare", 5))
    for wide in (dtype, np.float32):
        case["residual"] = normal(fresh_rng(), 15, 24, dtype=wide)
        result = deltaworks.dflash2_dynamic_conv(**case, **sizes, stage="residual", threads=2)
        assert result.output.dtype == wide
        close(result.output, reference(case, "residual", 5))


def test_arithmetic_of_the_activations_rounds_every_step():
    case, sizes = problem(BFLOAT16, taps=1)
    groups = np.repeat(case["dynamic"].reshape(15, 2, 4)[:, 0], 6, axis=1)
    expected = (case["base"][0, 0] + groups) * case["input"]
    result = deltaworks.dflash2_dynamic_conv(**case, **sizes, arithmetic="activation")
    same_bits(result.output, expected)


def test_lanes_never_mix():
    case, sizes = problem()
    expected = deltaworks.dflash2_dynamic_conv(**case, **sizes).output
    case["input"][:5] = np.nan
    result = deltaworks.dflash2_dynamic_conv(**case, **sizes).output
    same_bits(result[5:], expected[5:])


def test_out_tells_the_type_of_the_result():
    case, sizes = problem(np.float16)
    output = poison((15, 24))
    result = deltaworks.dflash2_dynamic_conv(**case, **sizes, out=output)
    assert result.output is output
    same_bits(deltaworks.dflash2_dynamic_conv(**case, **sizes).output, output.astype(np.float16))


@pytest.mark.parametrize("argument", ["input", "dynamic", "base", "residual"])
def test_rows_may_lie_apart(argument):
    case, sizes = problem()
    case["residual"] = normal(fresh_rng(), 15, 24)
    expected = deltaworks.dflash2_dynamic_conv(**case, **sizes, stage="residual").output
    case[argument] = pitched(case[argument])
    result = deltaworks.dflash2_dynamic_conv(
        **case, **sizes, stage="residual", out=pitched(poison((15, 24)))
    )
    same_bits(result.output, expected)
