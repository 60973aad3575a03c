"""Attention over a key and value cache in blocks."""

from __future__ import annotations

from typing import NamedTuple

from . import _core
from ._types import Array, Int32Array


class PagedAttentionResult(NamedTuple):
    """What paged_attention gives, in ONNX's order."""

    output: Array
    """T [tokens, heads, head_dim]"""
    key_cache: Array
    """The very array that was given, updated"""
    value_cache: Array
    """The very array that was given, updated"""


def paged_attention(
    query: Array,
    key: Array,
    value: Array,
    key_cache: Array,
    value_cache: Array,
    cu_seqlens: Int32Array,
    past_seqlens: Int32Array,
    block_table: Int32Array,
    *,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    slot_mapping: Int32Array | None = None,
    head_sink: Array | None = None,
    q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None,
    scale: float = 0.0,
    softcap: float = 0.0,
    local_window_size: int = -1,
    is_causal: bool = True,
    rotary_interleaved: bool = False,
    rotary_offset: int = 0,
    qk_norm_epsilon: float = 1e-6,
    out: Array | None = None,
    threads: int = 1,
) -> PagedAttentionResult:
    """Softmax attention of packed sequences over a cache in blocks (com.microsoft::PagedAttention).

    Token t of sequence b stands at position past_seqlens[b] + t; position j lies in row j %
    block_size of block block_table[b, j // block_size]. Norm, rotary embedding, cache write,
    then over the visible positions j

        output = sum_j softmax_j(scale * q @ k_j) v_j           scale 0: 1 / sqrt(head_dim)

    Parameters
    ----------
    query : T [tokens, heads, head_dim]
    key, value : T [tokens, kv_heads, head_dim]
        heads is a multiple of kv_heads; all three may be slices of one matrix.
    key_cache, value_cache : T [blocks, block_size, kv_heads, head_dim]
        Updated in place.
    cu_seqlens : int32 [sequences + 1]
        Where each sequence begins: 0 first, never decreasing, tokens last.
    past_seqlens : int32 [sequences]
    block_table : int32 [sequences, max_blocks]
        -1 where no block is mapped.
    cos_cache, sin_cache : T [max_positions, rotary_dim / 2]
        Given: rotary embedding of q and k.
    rotary_interleaved : bool
        Pairs (2 i, 2 i + 1) instead of (i, i + rotary_dim / 2).
    rotary_offset : int
        The first rotated dimension of a head.
    slot_mapping : int32 [tokens]
        The cache row that each token writes, -1 for none, instead of the one that block_table says.
    head_sink : T [heads]
        A logit that joins the softmax's denominator only.
    q_norm_weight, k_norm_weight : T [head_dim]
        RMSNorm per head before the rotary embedding.
    qk_norm_epsilon : float
        Of that norm.
    scale : float
        Of the logits; 0 stands for 1 / sqrt(head_dim).
    softcap : float
        Above 0: softcap * tanh(logit / softcap).
    local_window_size : int
        Positions that a token sees, its own included; -1 for all.
    is_causal : bool
        False: the tokens of one call see each other both ways.
    out : T [tokens, heads, head_dim]
        Memory for the output.
    threads : int

    Returns
    -------
    PagedAttentionResult (output, key_cache, value_cache)

    Raises
    ------
    ValueError
        An argument does not fit (a block that is missing names its sequence); nothing is
        written then.
    """
    return PagedAttentionResult(
        *_core.paged_attention(
            query=query,
            key=key,
            value=value,
            cu_seqlens=cu_seqlens,
            past_seqlens=past_seqlens,
            block_table=block_table,
            cos_cache=cos_cache,
            sin_cache=sin_cache,
            slot_mapping=slot_mapping,
            head_sink=head_sink,
            q_norm_weight=q_norm_weight,
            k_norm_weight=k_norm_weight,
            scale=scale,
            softcap=softcap,
            local_window_size=local_window_size,
            is_causal=is_causal,
            rotary_interleaved=rotary_interleaved,
            rotary_offset=rotary_offset,
            qk_norm_epsilon=qk_norm_epsilon,
            out=(out, key_cache, value_cache),
            threads=threads,
        )
    )
