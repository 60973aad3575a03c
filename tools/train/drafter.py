"""The block drafter of the demonstration model: DFlash2, in PyTorch.

Given the target's hidden states at a few layers (the taps) and its newest token (the anchor), one
pass proposes candidates for each of the next tokens, and a selector scores which follows which.
Parameter names are those of published DFlash2 checkpoints, as ONNX Runtime GenAI reads them.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from model import END, MASK, linear, norm_weight, random_weight, rms_norm, rotate


@dataclass(frozen=True)
class DrafterConfig:
    """`taps` are layers of the target whose outputs are read; `block` counts the anchor too.

    `window` is the context that a row sees in the packaged graph; training shows all of it.
    """

    vocabulary: int = 264
    hidden: int = 256
    layers: int = 2
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_base: float = 1e4
    mlp: int = 512
    taps: tuple = (1, 3, 5)
    block: int = 8
    conv_taps: int = 2
    conv_group: int = 16
    selector_rank: int = 32
    selector_top_k: int = 8
    window: int = 512
    epsilon: float = 1e-6
    max_positions: int = 8192

    @property
    def groups(self):
        return self.hidden // self.conv_group


# Pure functions of tensors, as in model.py. Blocks are rows [batch, anchors, block, hidden].


def norm(x, weight, epsilon):
    """The drafter's norms hold their factor itself; the target's hold what is added to one."""
    return rms_norm(x, weight - 1, epsilon)


def dynamic_conv(x, dynamic, base, stage, group):
    """Tap 0 is the row itself, tap t the row t before it in the block; zeros before the first."""
    taps, block = base.shape[1], x.shape[-2]
    total = 0
    for tap in range(taps):
        factor = base[stage, tap].to(x.dtype)
        factor = factor + dynamic[..., stage, tap, :].repeat_interleave(group, -1)
        total = total + factor * F.pad(x, (0, 0, tap, 0))[..., :block, :]
    return total


def coefficients(config, normed, projection):
    flat = linear(normed, projection)
    return flat.reshape(*flat.shape[:-1], 2, config.conv_taps, config.groups)


def heads(x, weight, dim):
    """Projection of rows [batch, rows, hidden] to [batch, rows, heads, dim]."""
    return linear(x, weight).unflatten(-1, (-1, dim))


def attention(config, x, context, places, mask, before, conv, base, q, k, v, o, q_norm, k_norm):
    """Rows of a block see each other and the context before their anchor."""
    c, shape = config, x.shape
    normed = norm(x, before, c.epsilon)
    dynamic = coefficients(c, normed, conv)
    rows = dynamic_conv(normed, dynamic, base, 0, c.conv_group).flatten(1, 2)
    rotary = (c.head_dim, c.rotary_base)
    queries = rotate(norm(heads(rows, q, c.head_dim), q_norm, c.epsilon), places[1], *rotary)
    keys, values = [], []
    for part, at in zip((context, rows), places, strict=True):
        keys.append(rotate(norm(heads(part, k, c.head_dim), k_norm, c.epsilon), at, *rotary))
        values.append(heads(part, v, c.head_dim))
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2),
        *(torch.cat(part, 1).transpose(1, 2) for part in (keys, values)),
        attn_mask=mask,
        enable_gqa=True,
    )
    out = linear(mixed.transpose(1, 2).flatten(2), o).reshape(shape)
    return x + dynamic_conv(out, dynamic, base, 1, c.conv_group)


def mlp(config, x, before, conv, base, gate, up, down):
    normed = norm(x, before, config.epsilon)
    dynamic = coefficients(config, normed, conv)
    rows = dynamic_conv(normed, dynamic, base, 0, config.conv_group)
    out = linear(F.silu(linear(rows, gate)) * linear(rows, up), down)
    return x + dynamic_conv(out, dynamic, base, 1, config.conv_group)


FUNCTIONS = (attention, mlp)


def _conv(config):
    """The identity: the row itself with factor one, no corrections."""
    holder = nn.Module()
    base = torch.zeros(2, config.conv_taps, config.hidden)
    base[:, 0] = 1
    holder.base_kernel = nn.Parameter(base)
    holder.kernel_projection = random_weight(
        2 * config.conv_taps * config.groups, config.hidden, std=0.0
    )
    return holder


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        c, wide = config, 0.6 / math.sqrt(config.hidden)
        queries, keys = c.query_heads * c.head_dim, c.kv_heads * c.head_dim
        self.input_layernorm, self.post_attention_layernorm = (
            norm_weight(c.hidden, 1),
            norm_weight(c.hidden, 1),
        )
        self.attention_conv, self.mlp_conv = _conv(c), _conv(c)
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        self.self_attn.q_proj = random_weight(queries, c.hidden, std=wide)
        self.self_attn.k_proj = random_weight(keys, c.hidden, std=wide)
        self.self_attn.v_proj = random_weight(keys, c.hidden, std=wide)
        self.self_attn.o_proj = random_weight(c.hidden, queries, std=0.01)
        self.self_attn.q_norm, self.self_attn.k_norm = (
            norm_weight(c.head_dim, 1),
            norm_weight(c.head_dim, 1),
        )
        self.mlp.gate_proj = random_weight(c.mlp, c.hidden, std=wide)
        self.mlp.up_proj = random_weight(c.mlp, c.hidden, std=wide)
        self.mlp.down_proj = random_weight(c.hidden, c.mlp, std=0.01)

    def attention_weights(self):
        a, conv = self.self_attn, self.attention_conv
        holders = (a.q_proj, a.k_proj, a.v_proj, a.o_proj, a.q_norm, a.k_norm)
        return (
            self.input_layernorm.weight,
            conv.kernel_projection.weight,
            conv.base_kernel,
            *(holder.weight for holder in holders),
        )

    def mlp_weights(self):
        m, conv = self.mlp, self.mlp_conv
        return (
            self.post_attention_layernorm.weight,
            conv.kernel_projection.weight,
            conv.base_kernel,
            *(holder.weight for holder in (m.gate_proj, m.up_proj, m.down_proj)),
        )


class Drafter(nn.Module):
    """`embedding` is the target's, frozen: it embeds the block and turns hidden rows to logits."""

    def __init__(self, config):
        super().__init__()
        c, self.config = config, config
        inputs = len(c.taps) * c.hidden
        self.fc = random_weight(c.hidden, inputs, std=0.6 / math.sqrt(inputs))
        self.hidden_norm, self.norm = norm_weight(c.hidden, 1), norm_weight(c.hidden, 1)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        selector = self.candidate_selector = nn.Module()
        for codebook in ("predecessor_codebook", "successor_codebook"):
            rows = torch.randn(c.vocabulary, c.selector_rank) * 0.1
            setattr(selector, codebook, nn.Parameter(rows))
        selector.hidden_projection = random_weight(c.selector_rank, c.hidden, std=0.02)
        self.use_functions(compiled=False)

    def use_functions(self, compiled):
        self.run = {
            f.__name__: torch.compile(f, dynamic=False) if compiled else f for f in FUNCTIONS
        }

    def forward(self, embedding, tapped, anchors, at):
        """Hidden rows [batch, anchors, block, hidden] behind the anchors at positions `at`.

        `tapped` [batch, tokens, taps * hidden]; an anchor's context is what lies before it: the
        target has not run the anchor itself yet.
        """
        c, (batch, count), tokens = self.config, at.shape, tapped.shape[1]
        ids = torch.full((batch, count, c.block), MASK, device=at.device)
        ids[..., 0] = anchors
        x = F.embedding(ids, embedding).to(tapped.dtype)
        context = norm(linear(tapped, self.fc.weight), self.hidden_norm.weight, c.epsilon)
        before = torch.arange(tokens, device=at.device)
        inside = (at[..., None] + torch.arange(c.block, device=at.device)).flatten(1)
        block = torch.arange(count, device=at.device).repeat_interleave(c.block)
        seen = before < at.repeat_interleave(c.block, 1)[..., None]
        own = (block[:, None] == block).expand(batch, -1, -1)
        mask = torch.cat([seen, own], -1)[:, None]
        places = (before.expand(batch, -1), inside)
        for layer in self.layers:
            x = self.run["attention"](c, x, context, places, mask, *layer.attention_weights())
            x = self.run["mlp"](c, x, *layer.mlp_weights())
        return norm(x, self.norm.weight, c.epsilon)

    def logits(self, hidden, embedding):
        """Of every slot behind the anchor; ids that are no text are barred."""
        scores = linear(hidden[..., 1:, :], embedding).float()
        scores[..., END + 1 :] = -1e9
        return scores

    def edges(self, hidden, previous, candidates):
        """What the selector adds to candidates [..., k] of slots whose predecessor is known."""
        s = self.candidate_selector
        projected = linear(hidden.float(), s.hidden_projection.weight)
        left = s.predecessor_codebook[previous] * projected
        return torch.einsum("...r,...kr->...k", left, s.successor_codebook[candidates])

    @torch.no_grad()
    def propose(self, embedding, tapped, anchors, at):
        """The greedy path [batch, anchors, block - 1]."""
        hidden = self(embedding, tapped, anchors, at)
        scores, candidates = self.logits(hidden, embedding).topk(self.config.selector_top_k, -1)
        path = [anchors]
        for slot in range(self.config.block - 1):
            ids = candidates[..., slot, :]
            edge = self.edges(hidden[..., slot + 1, :], path[-1], ids)
            best = (scores[..., slot, :] + edge).argmax(-1, keepdim=True)
            path.append(ids.gather(-1, best).squeeze(-1))
        return torch.stack(path[1:], -1)
