"""Random operands, comparisons, and a stopwatch for the interpreter lock."""

import functools
import os
import threading
import time
import zlib
from collections import Counter

import ml_dtypes
import numpy as np

BFLOAT16 = ml_dtypes.bfloat16
TYPES = [np.float32, np.float16, BFLOAT16]
# One rounding to the type, of sums that agree to a few float32 roundings.
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 1e-3, np.dtype(BFLOAT16): 8e-3}


def type_name(dtype):
    return np.dtype(dtype).name


calls = Counter()  # of fresh_rng by a test


@functools.cache
def seed():
    return int(os.environ.get("DELTAWORKS_TEST_SEED") or time.time_ns())


def fresh_rng():
    """Other operands in each run and at each call; pytest shows the seed where a test fails."""
    print(f"DELTAWORKS_TEST_SEED={seed()} draws these operands again")
    test = os.environ["PYTEST_CURRENT_TEST"]
    calls[test] += 1
    return np.random.default_rng([seed(), zlib.crc32(test.encode()), calls[test]])


def normal(rng, *shape, dtype=np.float32, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(dtype)


def offsets(*lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def spans(cu_seqlens):
    return [slice(*pair) for pair in zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)]


def poison(shape, dtype=np.float32):
    """Memory full of NaN, so that what a call leaves unwritten shows."""
    array = np.empty(shape, dtype)
    array.view(np.uint8).reshape(-1)[:] = 0xFF
    return array


def pitched(array, extra=3):
    """Equal rows, with NaN between them."""
    wide = poison((len(array), array[:1].size + extra), array.dtype)
    dense = wide[:, : array[:1].size]
    dense[:] = array.reshape(len(array), -1)
    rows = np.lib.stride_tricks.as_strided(
        dense, array.shape, (wide.strides[0], *array.strides[1:])
    )
    assert not rows.flags.c_contiguous
    return rows


def same_bits(actual, expected):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    bits = [np.ascontiguousarray(a).view(np.uint8) for a in (actual, expected)]
    np.testing.assert_array_equal(*bits)


def close(actual, expected):
    """Within the type's tolerance of the largest magnitude of a float64 reference."""
    tolerance = TOLERANCE[actual.dtype] * max(np.abs(expected).max(initial=0), 1e-3)
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0, atol=tolerance)


def longest_pause(call):
    """Seconds of `call`, and the longest in which another Python thread could not run meanwhile."""
    pauses, done = [], threading.Event()

    def tick():
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            pauses.append(now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    done.set()
    ticker.join()
    return seconds, max(pauses)
