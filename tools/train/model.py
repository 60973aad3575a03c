"""The demonstration model: a byte-level hybrid of gated delta networks and attention, in PyTorch.

The arithmetic and the parameter names are those of Qwen3.5's text decoder (`Qwen3_5TextModel` of
transformers), so a state dict of this class is a checkpoint of that one. Three layers of four are
gated delta networks, the fourth is gated attention.
"""

import math
from dataclasses import dataclass

import delta_rule
import torch
import torch.nn as nn
import torch.nn.functional as F

END, MASK = 256, 257  # ids after the 256 bytes: end of a document, and a drafter's blank


@dataclass(frozen=True)
class Config:
    vocabulary: int = 264
    hidden: int = 256
    layers: int = 8
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    conv_width: int = 4
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    rotary_base: float = 1e7
    mlp: int = 768
    epsilon: float = 1e-6
    max_positions: int = 8192

    def is_attention(self, layer):
        return layer % 4 == 3

    @property
    def conv_channels(self):
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


TINY = Config(hidden=64, layers=4, key_dim=32, value_dim=32, head_dim=32, rotary_dim=8, mlp=128)


# Pure functions of tensors: torch.compile then compiles each once for all layers.


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


def rms_norm(x, weight, epsilon):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * (1 + weight.float())).to(x.dtype)


def unit(x, epsilon=1e-6):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + epsilon)).to(x.dtype)


def rotate(x, positions, rotary_dim, base):
    """Rotates the first `rotary_dim` of each head, halves paired; x [..., tokens, heads, dim]."""
    steps = torch.arange(0, rotary_dim, 2, device=x.device, dtype=torch.float32) / rotary_dim
    angle = positions.float()[..., None] * base**-steps
    cos, sin = angle.cos()[..., None, :], angle.sin()[..., None, :]
    first, second = x[..., : rotary_dim // 2].float(), x[..., rotary_dim // 2 : rotary_dim].float()
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return torch.cat([turned.to(x.dtype), x[..., rotary_dim:]], -1)


def causal_conv(x, past, weight):
    """Depthwise convolution over [past, x] and silu; past [batch, width - 1, channels]."""
    taps, tokens = weight[:, 0].float(), x.shape[1]
    window = torch.cat([past, x], 1).float()
    y = sum(window[:, j : j + tokens] * taps[:, j] for j in range(taps.shape[1]))
    return F.silu(y).to(x.dtype)


def delta_inputs(config, x, past, norm, qkv, z, b, a, conv, a_log, dt_bias):
    """What the gated delta rule reads, plus the output gate and the convolution's new past."""
    c, (batch, tokens) = config, x.shape[:2]
    normed = rms_norm(x, norm, c.epsilon)
    projected = linear(normed, qkv)
    keys = c.key_heads * c.key_dim
    mixed = causal_conv(projected, past, conv)
    q, k, v = mixed.split([keys, keys, c.value_heads * c.value_dim], -1)
    log_decay = -a_log.exp() * F.softplus(linear(normed, a).float() + dt_bias)
    return (
        unit(q.reshape(batch, tokens, c.key_heads, c.key_dim)),
        unit(k.reshape(batch, tokens, c.key_heads, c.key_dim)),
        v.reshape(batch, tokens, c.value_heads, c.value_dim).contiguous(),
        log_decay,
        linear(normed, b).float().sigmoid(),
        linear(normed, z),
        torch.cat([past, projected], 1)[:, tokens:],
    )


def delta_output(config, o, z, x, norm, out):
    wide = o.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + config.epsilon) * norm.float()
    gated = wide * F.silu(z.float().reshape(wide.shape))
    return x + linear(gated.to(x.dtype).flatten(2), out)


def attention_inputs(config, x, positions, norm, q, k, v, q_norm, k_norm):
    c, (batch, tokens) = config, x.shape[:2]
    normed = rms_norm(x, norm, c.epsilon)
    queries = linear(normed, q).reshape(batch, tokens, c.query_heads, 2 * c.head_dim)
    queries, gate = queries.split(c.head_dim, -1)
    keys = linear(normed, k).reshape(batch, tokens, c.kv_heads, c.head_dim)
    values = linear(normed, v).reshape(batch, tokens, c.kv_heads, c.head_dim)
    queries = rotate(rms_norm(queries, q_norm, c.epsilon), positions, c.rotary_dim, c.rotary_base)
    keys = rotate(rms_norm(keys, k_norm, c.epsilon), positions, c.rotary_dim, c.rotary_base)
    return queries, keys, values, gate.flatten(2)


def attention_output(x, queries, keys, values, mask, gate, out):
    """Softmax attention; mask None means causal over equal lengths."""
    mixed = F.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (queries, keys, values)),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return x + linear(mixed.transpose(1, 2).flatten(2) * gate.sigmoid(), out)


def mlp(config, x, norm, gate, up, down):
    normed = rms_norm(x, norm, config.epsilon)
    return x + linear(F.silu(linear(normed, gate)) * linear(normed, up), down)


FUNCTIONS = (delta_inputs, delta_output, attention_inputs, attention_output, mlp)


def random_weight(*shape, std):
    holder = nn.Module()
    holder.weight = nn.Parameter(torch.randn(*shape) * std)
    return holder


def norm_weight(width, value):
    holder = nn.Module()
    holder.weight = nn.Parameter(torch.full((width,), float(value)))
    return holder


class DeltaLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        c, wide = config, 0.6 / math.sqrt(config.hidden)
        values = c.value_heads * c.value_dim
        self.in_proj_qkv = random_weight(c.conv_channels, c.hidden, std=wide)
        self.in_proj_z = random_weight(values, c.hidden, std=wide)
        self.in_proj_b = random_weight(c.value_heads, c.hidden, std=0.02)
        self.in_proj_a = random_weight(c.value_heads, c.hidden, std=0.02)
        self.conv1d = random_weight(c.conv_channels, 1, c.conv_width, std=0.3)
        # Time constants from 10 to 1000 tokens at the start: softplus(dt_bias) log-uniform.
        dt = torch.exp(torch.rand(c.value_heads) * math.log(100) + math.log(0.001))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(1 + 15 * torch.rand(c.value_heads)))
        self.norm = norm_weight(c.value_dim, 1)
        self.out_proj = random_weight(c.hidden, values, std=0.04 / math.sqrt(2 * c.layers))

    def inputs(self):
        projections = (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        return (*(p.weight for p in projections), self.conv1d.weight, self.A_log, self.dt_bias)


class AttentionLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        c, wide = config, 0.6 / math.sqrt(config.hidden)
        self.q_proj = random_weight(2 * c.query_heads * c.head_dim, c.hidden, std=wide)
        self.k_proj = random_weight(c.kv_heads * c.head_dim, c.hidden, std=wide)
        self.v_proj = random_weight(c.kv_heads * c.head_dim, c.hidden, std=wide)
        self.q_norm, self.k_norm = norm_weight(c.head_dim, 0), norm_weight(c.head_dim, 0)
        self.o_proj = random_weight(
            c.hidden, c.query_heads * c.head_dim, std=0.04 / math.sqrt(2 * c.layers)
        )

    def inputs(self):
        projections = (self.q_proj, self.k_proj, self.v_proj)
        return (*(p.weight for p in projections), self.q_norm.weight, self.k_norm.weight)


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        c, wide = config, 0.6 / math.sqrt(config.hidden)
        self.gate_proj = random_weight(c.mlp, c.hidden, std=wide)
        self.up_proj = random_weight(c.mlp, c.hidden, std=wide)
        self.down_proj = random_weight(c.hidden, c.mlp, std=0.04 / math.sqrt(2 * c.layers))


class Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.input_layernorm = norm_weight(config.hidden, 0)
        if config.is_attention(index):
            self.self_attn = AttentionLayer(config)
        else:
            self.linear_attn = DeltaLayer(config)
        self.post_attention_layernorm = norm_weight(config.hidden, 0)
        self.mlp = Mlp(config)


class Model(nn.Module):
    """`dtype` is that of the activations; parameters, gates and states stay float32."""

    def __init__(self, config, dtype=torch.float32):
        super().__init__()
        self.config, self.dtype, self.rule = config, dtype, delta_rule.plain
        self.embed_tokens = random_weight(config.vocabulary, config.hidden, std=0.02)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))
        self.norm = norm_weight(config.hidden, 0)
        self.use_functions(compiled=False)

    def use_functions(self, compiled):
        """Compiled ones pay for fixed shapes only: training, but not decoding."""
        self.run = {
            f.__name__: torch.compile(f, dynamic=False) if compiled else f for f in FUNCTIONS
        }

    def forward(self, ids, taps=(), state=None):
        """Logits [batch, tokens, vocabulary] of whole sequences, or of the next tokens of `state`.

        With `taps`, also the outputs of those layers, concatenated: what a block drafter reads.
        """
        x = F.embedding(ids, self.embed_tokens.weight).to(self.dtype)
        begin = state.length if state else 0
        positions = torch.arange(begin, begin + ids.shape[1], device=ids.device)
        tapped = []
        for index, layer in enumerate(self.layers):
            mix = self._attention if self.config.is_attention(index) else self._delta
            x = mix(x, layer, positions, state.layers[index] if state else None)
            m = layer.mlp
            weights = (m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight)
            x = self.run["mlp"](self.config, x, layer.post_attention_layernorm.weight, *weights)
            if index in taps:
                tapped.append(x)
        if state:
            state.length += ids.shape[1]
        hidden = rms_norm(x, self.norm.weight, self.config.epsilon)
        logits = linear(hidden, self.embed_tokens.weight)
        return (logits, torch.cat(tapped, -1)) if taps else logits

    def _delta(self, x, layer, _, state):
        m, c = layer.linear_attn, self.config
        past = x.new_zeros(x.shape[0], c.conv_width - 1, c.conv_channels)
        past = state["conv"] if state else past
        *read, z, past = self.run["delta_inputs"](
            c, x, past, layer.input_layernorm.weight, *m.inputs()
        )
        if state:
            o, state["recurrent"] = delta_rule.recurrent(*read, state["recurrent"])
            state["conv"] = past
        else:
            o = self.rule(*read)
        return self.run["delta_output"](c, o, z, x, m.norm.weight, m.out_proj.weight)

    def _attention(self, x, layer, positions, state):
        m, mask = layer.self_attn, None
        queries, keys, values, gate = self.run["attention_inputs"](
            self.config, x, positions, layer.input_layernorm.weight, *m.inputs()
        )
        if state:
            keys = state["key"] = torch.cat([state["key"], keys], 1)
            values = state["value"] = torch.cat([state["value"], values], 1)
            mask = torch.arange(keys.shape[1], device=x.device) <= positions[:, None]
        return self.run["attention_output"](x, queries, keys, values, mask, gate, m.o_proj.weight)
