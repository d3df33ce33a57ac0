"""Twins of attention layers that compute the same, and also with fewer heads.

PyTorch's and torchvision's layers take it for granted that their heads' widths add up to the width of what they read.
A twin is the same object, with the same tensors, of another class: ``put_twin`` changes it in place, when heads are
first pruned. Where no head is missing its bits are those of the layer's own forward pass (PyTorch's fused kernel apart,
which only evaluation takes).

Shapes: B batch, T targets, S sources, H heads, D width of a head; W windows of P pixels.
"""
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# torchvision's modules are untyped.

import math
import sys
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class HeadAttention(nn.MultiheadAttention):
    """``nn.MultiheadAttention`` whose heads may be fewer than its width has room for."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, with arguments and results as of ``nn.MultiheadAttention``."""
        batched = query.dim() == 3
        same = query is key, key is value
        query, key, value = (self._sequence_first(each, batched) for each in (query, key, value))
        steps, batch, sources, heads = query.shape[0], query.shape[1], key.shape[0], self.num_heads
        mask = self._mask(attn_mask, key_padding_mask, batch, query.dtype, causal_alone=is_causal and not need_weights)
        # The operations and their order are those of PyTorch, so that the bits are too.
        q, k, v = (
            each.reshape(len(each), batch * heads, self.head_dim).transpose(0, 1)
            for each in self._projected(query, key, value, same)
        )
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scaled, turned = q * math.sqrt(1.0 / self.head_dim), k.transpose(-2, -1)
            scores = torch.bmm(scaled, turned) if mask is None else torch.baddbmm(mask, scaled, turned)
            weights = F.dropout(scores.softmax(dim=-1), dropout) if dropout else scores.softmax(dim=-1)
            mixed = torch.bmm(weights, v).transpose(0, 1)
            weights = weights.view(batch, heads, steps, sources)
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            shown = mask if mask is None else mask[None] if len(mask) == 1 else mask.view(batch, heads, -1, sources)
            q, k, v = (each.reshape(batch, heads, -1, self.head_dim) for each in (q, k, v))
            causal = is_causal and mask is None
            mixed = F.scaled_dot_product_attention(q, k, v, shown, dropout, causal).permute(2, 0, 1, 3)
        output = self.out_proj(mixed.reshape(steps * batch, heads * self.head_dim))
        output = output.view(steps, batch, output.shape[1])
        if not batched:
            return output.squeeze(1), weights
        return output.transpose(1, 0) if self.batch_first else output, weights

    def _sequence_first(self, tensor: Tensor, batched: bool) -> Tensor:
        if not batched:
            return tensor.unsqueeze(1)
        return tensor.transpose(1, 0) if self.batch_first else tensor

    def _projected(
        self, query: Tensor, key: Tensor, value: Tensor, same: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [T or S, B, H * D] each."""
        packed, bias = cast(Tensor | None, self.in_proj_weight), cast(Tensor | None, self.in_proj_bias)
        if packed is not None and all(same):
            projected = F.linear(query, packed, bias)
            projected = projected.unflatten(-1, (3, projected.shape[-1] // 3)).unsqueeze(0).transpose(0, -2)
            q, k, v = projected.squeeze(-2).contiguous()
            return q, k, v
        own = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        weights = cast(tuple[Tensor, Tensor, Tensor], own if packed is None else packed.chunk(3))
        biases = (None, None, None) if bias is None else bias.chunk(3)
        q, k, v = map(F.linear, (query, key, value), weights, biases)
        return q, k, v

    def _mask(
        self, mask: Tensor | None, padding: Tensor | None, batch: int, dtype: torch.dtype, *, causal_alone: bool
    ) -> Tensor | None:
        """Return what is added to the scores, [1 or B * H, T or 1, S]."""
        if causal_alone and padding is None:
            return None
        added = [None if each is None else _as_added(each, dtype) for each in (mask, padding)]
        if added[0] is not None and added[0].dim() == 2:
            added[0] = added[0].unsqueeze(0)
        if added[1] is not None:
            sources = added[1].shape[-1]
            shown = added[1].view(batch, 1, 1, sources).expand(-1, self.num_heads, -1, -1)
            added[1] = shown.reshape(batch * self.num_heads, 1, sources)
        if added[0] is None or added[1] is None:
            return added[1] if added[0] is None else added[0]
        return added[0] + added[1]


def _as_added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


class _WindowAttention(nn.Module):
    """torchvision's ShiftedWindowAttention, of Swin 1 and 2."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend within shifted windows, [B, rows, columns, C] -> the same."""
        me = cast(Any, self)
        batch, rows, columns, channels = x.shape
        sides = cast(tuple[int, int], tuple(me.window_size))
        below, right = (-side % window for side, window in zip((rows, columns), sides, strict=True))
        x = F.pad(x, (0, 0, 0, right, 0, below))
        padded = x.shape[1], x.shape[2]
        shifts = [
            0 if window >= side else shift for shift, window, side in zip(me.shift_size, sides, padded, strict=True)
        ]
        if sum(shifts):
            x = torch.roll(x, (-shifts[0], -shifts[1]), (1, 2))
        windows = _cut(x, sides)
        attended = self._attend(windows, _window_mask(x, padded, sides, shifts) if sum(shifts) else None)
        attended = F.dropout(me.proj(attended), p=me.dropout, training=self.training)
        x = attended.view(batch, padded[0] // sides[0], padded[1] // sides[1], *sides, channels)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(batch, *padded, channels)
        if sum(shifts):
            x = torch.roll(x, (shifts[0], shifts[1]), (1, 2))
        return x[:, :rows, :columns, :].contiguous()

    def _attend(self, windows: Tensor, mask_WPP: Tensor | None) -> Tensor:
        """Return what the heads of each window see, [W, P, H * D]."""
        me = cast(Any, self)
        many, pixels = windows.shape[:2]
        bias, logit_scale = me.qkv.bias, getattr(me, "logit_scale", None)
        if logit_scale is not None and bias is not None:
            bias = bias.clone()
            third = bias.numel() // 3
            bias[third : 2 * third].zero_()  # in Swin 2 keys have none
        qkv = F.linear(windows, me.qkv.weight, bias)
        head = qkv.shape[-1] // (3 * me.num_heads)
        q, k, v = qkv.reshape(many, pixels, 3, me.num_heads, head).permute(2, 0, 3, 1, 4)
        if logit_scale is None:
            scores = (q * head**-0.5).matmul(k.transpose(-2, -1))
        else:
            scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
            scores = scores * torch.clamp(logit_scale, max=math.log(100.0)).exp()
        scores = scores + me.get_relative_position_bias()
        if mask_WPP is not None:
            scores = scores.view(many // len(mask_WPP), len(mask_WPP), me.num_heads, pixels, pixels)
            scores = (scores + mask_WPP.unsqueeze(1).unsqueeze(0)).view(-1, me.num_heads, pixels, pixels)
        weights = F.dropout(F.softmax(scores, dim=-1), p=me.attention_dropout, training=self.training)
        return weights.matmul(v).transpose(1, 2).reshape(many, pixels, me.num_heads * head)


def _cut(x: Tensor, sides: tuple[int, int]) -> Tensor:
    """Cut [B, rows, columns, C] into windows, [B * W, P, C]."""
    batch, rows, columns, channels = x.shape
    x = x.view(batch, rows // sides[0], sides[0], columns // sides[1], sides[1], channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, sides[0] * sides[1], channels)


def _window_mask(x: Tensor, padded: tuple[int, int], sides: tuple[int, int], shifts: list[int]) -> Tensor:
    """Return -100 for pixels of a window that were apart before the shift, 0 for the others, [W, P, P]."""
    places = [torch.arange(side, device=x.device) for side in padded]
    bands = [
        (place >= side - window).int() + (place >= side - shift if shift else place < 0).int()
        for place, side, window, shift in zip(places, padded, sides, shifts, strict=True)
    ]
    region = (3 * bands[0][:, None] + bands[1]).to(x.dtype)[None, :, :, None]
    region_WP = _cut(region, sides).squeeze(-1)
    apart = region_WP.unsqueeze(1) != region_WP.unsqueeze(2)
    return torch.zeros_like(apart, dtype=x.dtype).masked_fill(apart, -100.0)


class _RelativeAttention(nn.Module):
    """torchvision's RelativePositionalMultiHeadAttention, of MaxViT."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each of the groups, [B, W, P, C] -> the same."""
        me = cast(Any, self)
        batch, groups, pixels, _ = x.shape
        shape = batch, groups, pixels, me.n_heads, me.head_dim
        q, k, v = (each.reshape(shape).permute(0, 1, 3, 2, 4) for each in torch.chunk(me.to_qkv(x), 3, dim=-1))
        scores = torch.einsum("BWHTD,BWHSD->BWHTS", q, k * me.scale_factor)
        weights = F.softmax(scores + me.get_relative_positional_bias(), dim=-1)
        mixed = torch.einsum("BWHTS,BWHSD->BWHTD", weights, v)
        return me.merge(mixed.permute(0, 1, 3, 2, 4).reshape(batch, groups, pixels, me.n_heads * me.head_dim))


TWINS: dict[tuple[str, str], type[nn.Module]] = {
    ("torchvision.models.swin_transformer", "ShiftedWindowAttention"): _WindowAttention,
    ("torchvision.models.swin_transformer", "ShiftedWindowAttentionV2"): _WindowAttention,
    ("torchvision.models.maxvit", "RelativePositionalMultiHeadAttention"): _RelativeAttention,
}


def put_twin(module: nn.Module) -> None:
    """Let an attention layer take fewer heads, if it has a twin."""
    kind = type(module)
    if kind is nn.MultiheadAttention:
        if cast(Any, module).bias_k is None and not module.add_zero_attn:
            module.__class__ = HeadAttention
            # The attribute by which layers around it choose the fused kernel, which knows no missing heads.
            vars(module)["_qkv_same_embed_dim"] = False
    elif (twin := TWINS.get((kind.__module__, kind.__name__))) is not None:
        module.__class__ = _merged(kind, twin)


def _merged(kind: type[nn.Module], twin: type[nn.Module]) -> type[nn.Module]:
    """Return a class with the twin's forward pass and everything else of the layer's own."""
    name = f"{twin.__name__}{kind.__name__}"
    room = sys.modules[__name__]
    if not hasattr(room, name):  # once, by a name at which pickle finds it
        setattr(room, name, type(name, (twin, kind), {"__module__": __name__}))
    return getattr(room, name)


def put_twins(model: nn.Module) -> None:
    """Replace all attention layers that have a twin by it."""
    for module in model.modules():
        put_twin(module)
    stop_nesting(model)


def stop_nesting(model: nn.Module) -> None:
    """Let encoders pass no nested tensors, which only the fused kernel reads, to attention that has a twin."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(m, HeadAttention) for m in module.modules()):
            module.use_nested_tensor = False
