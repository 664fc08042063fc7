"""Longspan's attention kernels for PyTorch, forward only, with flash-attn's functions.

Here: FlashAttention-2's signatures. longspan_attn.flash3 has FlashAttention-3's, longspan_attn.sdpa PyTorch's.
"""

from longspan_attn._checks import ArgumentError
from longspan_attn._library import LibraryError, choose
from longspan_attn._plan import AttnPlan
from longspan_attn.flash2 import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from longspan_attn.sdpa import scaled_dot_product_attention

__all__ = [
    "ArgumentError",
    "AttnPlan",
    "LibraryError",
    "choose",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "scaled_dot_product_attention",
]
