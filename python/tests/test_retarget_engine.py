"""The builder's CUDA packages, retargeted, write in GenAI's Engine on the CPU what transformers
writes: in batches, as requests arrive, with good, wrong and half-wrong drafts, over many pages."""

import shutil

import numpy as np
import pytest
from deltaworks.retarget import retarget
from genai import PACKAGES, change_configuration, decode, expected, without_drafter

og = pytest.importorskip("onnxruntime_genai")

NAMES = ["paged/float16", "paged/bfloat16", "paged/int4", "moe/float16", "moe/int4"]


def engine_of(folder):
    return og.Engine(og.Model(str(folder)))


@pytest.fixture(scope="module", params=NAMES)
def package(request, tmp_path_factory):
    """Engine without a drafter, and the texts it is to write."""
    source, folder = PACKAGES / request.param, tmp_path_factory.mktemp("package") / "cpu"
    if not source.is_dir():
        pytest.skip("not shipped, for its size; scripts/test_genai.sh builds it")
    retarget(source, folder)
    if request.param == "paged/float16":
        without_drafter(folder)
    return engine_of(folder), expected("moe" if request.param.startswith("moe") else "dense")


def tokens(texts):
    return [text["tokens"] for text in texts]


@pytest.mark.parametrize("every", [0, 3], ids=["at once", "one after the other"])
def test_a_ragged_batch_is_what_transformers_writes(package, every):
    engine, texts = package
    results, steps = decode(engine, texts, every=every)
    assert results == tokens(texts)
    assert steps <= len(texts[-1]["tokens"]) + every * len(texts)


def right(texts):
    return lambda index, done: texts[index]["tokens"][done : done + 7]


def wrong(texts):
    return lambda index, done: [(token + 1) % 136 for token in right(texts)(index, done)]


def half_wrong(texts):
    """The first ones right, a different number of them each time."""
    return lambda index, done: right(texts)(index, done)[: (done + index) % 7] + [0] * 7


@pytest.mark.parametrize("drafts, share", [(right, 0.14), (wrong, 1.0), (half_wrong, 0.35)])
def test_drafts_change_no_token_and_save_steps(package, drafts, share):
    engine, texts = package
    before = engine.get_speculative_stats()
    results, steps = decode(engine, texts, drafts(texts))
    assert results == tokens(texts)
    assert steps <= share * len(texts[-1]["tokens"]) + 1
    after = engine.get_speculative_stats()
    partial = after["partial_accept_rounds"] - before["partial_accept_rounds"]
    assert (partial > 20) == (drafts is half_wrong)


@pytest.mark.parametrize("keep", [False, True], ids=["float32", "float16"])
def test_a_drafter_drafts_and_changes_no_token(tmp_path, keep):
    retarget(PACKAGES / "paged/float16", tmp_path / "cpu", keep_float16=keep)
    engine, texts = engine_of(tmp_path / "cpu"), expected("dense")
    if keep:  # in float16 the tokens are its own
        without = tmp_path / "plain"
        retarget(PACKAGES / "paged/float16", without, keep_float16=True)
        without_drafter(without)
        plain, _ = decode(engine_of(without), texts)
    else:
        plain = tokens(texts)
    results, _ = decode(engine, texts)
    assert results == plain
    stats = engine.get_speculative_stats()
    assert stats["draft_forward_passes"] > 50 and stats["draft_tokens_proposed"] > 1000
    assert stats["dflash2_failures"] == 0 and stats["dflash2_disables"] == 0


@pytest.mark.parametrize("blocks, keep", [(60, False), (13, False), (25, True)])
def test_the_engine_starts_with_a_small_cache(tmp_path, blocks, keep):
    block_bytes = 16 * 2 * 32 * (2 if keep else 4)
    source, target = PACKAGES / "paged/float16", tmp_path / "cpu"
    retarget(source, target, cache_bytes=blocks * block_bytes, keep_float16=keep)
    engine_of(target)


def test_the_engine_starts_with_a_drafter_without_a_window(tmp_path):
    source = shutil.copytree(PACKAGES / "paged/float16", tmp_path / "source")
    change_configuration(source, lambda c: c["model"]["dflash2"].pop("sliding_window"))
    retarget(source, tmp_path / "cpu", cache_bytes=1 << 20)
    engine_of(tmp_path / "cpu")


def test_a_head_for_more_tokens_drafts_and_changes_none(tmp_path):
    retarget(PACKAGES / "mtp/int4", tmp_path / "cpu")
    engine, texts = engine_of(tmp_path / "cpu"), expected("dense")
    results, _ = decode(engine, texts, every=3)
    assert results == tokens(texts)
    stats = engine.get_speculative_stats()
    assert stats["draft_tokens_proposed"] > 1000 and stats["draft_tokens_accepted"] > 0
    assert stats["mtp_failures"] == 0


def test_activations_of_eight_bits_decode_with_drafts_as_without(tmp_path):
    retarget(PACKAGES / "paged/int4", tmp_path / "cpu", int8_activations=True)
    engine, texts = engine_of(tmp_path / "cpu"), expected("dense")
    plain, steps = decode(engine, texts)
    texts = [text | {"tokens": result} for text, result in zip(texts, plain, strict=True)]
    drafted, fewer_steps = decode(engine, texts, half_wrong(texts))
    assert drafted == plain
    assert fewer_steps < steps / 2


def test_more_requests_than_places_wait(tmp_path):
    retarget(PACKAGES / "paged/int4", tmp_path / "cpu", max_batch_size=2)
    texts = expected("dense")
    results, _ = decode(engine_of(tmp_path / "cpu"), [*texts, *texts])
    assert results == 2 * tokens(texts)
    assert np.unique(results[3]).size > 30  # a text that repeats itself shows little
