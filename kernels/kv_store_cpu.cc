// Writing the paged KV cache on the CPU: conversions by Highway where the processor has them.
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_store.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_store_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace longspan {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Both return how many elements they did; the caller does the rest one by one.
size_t StoreHalves(const float* from, uint16_t* to, size_t count) {
  size_t i = 0;
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  for (; i + 8 <= count; i += 8) {
    const auto half = hn::DemoteTo(dh, hn::LoadU(d, from + i));
    hn::StoreU(half, dh, reinterpret_cast<hwy::float16_t*>(to + i));
  }
#else
  (void)from, (void)to, (void)count;
#endif
  return i;
}

// To nearest even by integer arithmetic, the same on every target.
size_t StoreBFloats(const float* from, uint16_t* to, size_t count) {
  const hn::CappedTag<float, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint16_t, decltype(d)> du16;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto x = hn::LoadU(d, from + i);
    const auto bits = hn::BitCast(du, x);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto is_nan = hn::RebindMask(du, hn::Ne(x, x));
    const auto kept = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
    hn::StoreU(hn::DemoteTo(du16, hn::BitCast(hn::RebindToSigned<decltype(d)>(), kept)), du16,
               to + i);
  }
  return i;
}

}  // namespace HWY_NAMESPACE
}  // namespace longspan
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cpu/split_rows.h"

namespace longspan {
namespace {

bool Is8Bit(DType dtype) { return DTypeBytes(dtype) == 1; }

KernelStatus Check(const KvPoolView& pool, const KvStoreParams& params) {
  if (DTypeBytes(pool.dtype) == 0 || DTypeBytes(params.dtype) < 2) {
    return KernelStatus::kUnsupportedDType;
  }
  if (pool.num_kv_heads < 1 || pool.head_dim < 1 || pool.block_size < 1 || params.num_tokens < 0) {
    return KernelStatus::kBadShape;
  }
  if (params.cos_sin != nullptr &&
      (params.rotary_dim < 0 || params.rotary_dim % 2 != 0 || params.rotary_dim > pool.head_dim)) {
    return KernelStatus::kBadShape;
  }
  if (Is8Bit(pool.dtype) && (pool.k_scales == nullptr || pool.v_scales == nullptr)) {
    return KernelStatus::kBadShape;
  }
  return KernelStatus::kOk;
}

// Byte address of a row of keys or values.
char* RowOf(const KvPoolView& pool, bool values, int64_t block, int64_t offset, int64_t head) {
  const int64_t element =
      values
          ? block * pool.v_block_stride + offset * pool.v_token_stride + head * pool.v_head_stride
          : block * pool.k_block_stride + offset * pool.k_token_stride + head * pool.k_head_stride;
  return static_cast<char*>(values ? pool.v : pool.k) + element * DTypeBytes(pool.dtype);
}

}  // namespace

HWY_EXPORT(StoreHalves);
HWY_EXPORT(StoreBFloats);

namespace {

void StoreFloats(const float* from, char* to, DType dtype, float scale, size_t count) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  if (dtype == DType::kFloat8E4M3) {
    for (size_t i = 0; i < count; ++i)
      to[i] = static_cast<char>(FloatToFloat8E4M3(from[i] / scale));
    return;
  }
  if (dtype == DType::kInt8) {
    for (size_t i = 0; i < count; ++i) to[i] = static_cast<char>(FloatToInt8(from[i] / scale));
    return;
  }
  auto* narrow = reinterpret_cast<uint16_t*>(to);
  const bool half = dtype == DType::kFloat16;
  size_t i = half ? HWY_DYNAMIC_DISPATCH(StoreHalves)(from, narrow, count)
                  : HWY_DYNAMIC_DISPATCH(StoreBFloats)(from, narrow, count);
  for (; i < count; ++i) narrow[i] = half ? FloatToFloat16(from[i]) : FloatToBFloat16(from[i]);
}

void Widen(const char* from, DType type, size_t count, float* to) {
  if (type == DType::kFloat32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  const auto* narrow = reinterpret_cast<const uint16_t*>(from);
  for (size_t i = 0; i < count; ++i) {
    to[i] = type == DType::kFloat16 ? Float16ToFloat(narrow[i]) : BFloat16ToFloat(narrow[i]);
  }
}

// from: elements of from_type.
void StoreRow(const char* from, DType from_type, char* to, DType to_type, float scale,
              size_t count) {
  if (from_type == DType::kFloat32) {
    return StoreFloats(reinterpret_cast<const float*>(from), to, to_type, scale, count);
  }
  constexpr size_t kChunk = 256;
  float wide[kChunk];
  for (size_t first = 0; first < count; first += kChunk) {
    const size_t n = std::min(kChunk, count - first);
    Widen(from + first * sizeof(uint16_t), from_type, n, wide);
    StoreFloats(wide, to + first * static_cast<size_t>(DTypeBytes(to_type)), to_type, scale, n);
  }
}

// Keys or values of one head of one token. rotated: head_dim floats of scratch; empty: no rotation.
void StoreHead(const KvPoolView& pool, const KvStoreParams& params, bool values, int64_t token,
               int64_t head, int64_t slot, std::span<float> rotated) {
  const int64_t block = slot / pool.block_size;
  const int64_t from = values ? token * params.v_token_stride + head * params.v_head_stride
                              : token * params.k_token_stride + head * params.k_head_stride;
  float scale = 1.0f;
  if (Is8Bit(pool.dtype)) {
    scale =
        values ? pool.v_scales[block * pool.v_scale_block_stride + head * pool.v_scale_head_stride]
               : pool.k_scales[block * pool.k_scale_block_stride + head * pool.k_scale_head_stride];
  }
  const char* row =
      static_cast<const char*>(values ? params.v : params.k) + from * DTypeBytes(params.dtype);
  char* to = RowOf(pool, values, block, slot % pool.block_size, head);
  const auto count = static_cast<size_t>(pool.head_dim);
  if (values || rotated.empty()) {
    return StoreRow(row, params.dtype, to, pool.dtype, scale, count);
  }
  Widen(row, params.dtype, count, rotated.data());
  RotateRowCpu(rotated.data(), params.cos_sin + token * params.rotary_dim, params.rotary_dim,
               params.pairs);
  StoreFloats(rotated.data(), to, pool.dtype, scale, count);
}

}  // namespace

KernelStatus KvStoreCpu(ThreadPool& threads, const KvPoolView& pool, const KvStoreParams& params) {
  if (const KernelStatus status = Check(pool, params); status != KernelStatus::kOk) return status;
  SplitRows(threads, params.num_tokens, int64_t{2} * pool.num_kv_heads * pool.head_dim,
            [&](int64_t begin, int64_t end) {
              std::vector<float> rotated(
                  params.cos_sin != nullptr ? static_cast<size_t>(pool.head_dim) : 0);
              for (int64_t token = begin; token < end; ++token) {
                const int64_t token_slot = params.slot_mapping[token];
                if (token_slot < 0) continue;
                for (int64_t head = 0; head < pool.num_kv_heads; ++head) {
                  StoreHead(pool, params, false, token, head, token_slot, rotated);
                  StoreHead(pool, params, true, token, head, token_slot, rotated);
                }
              }
            });
  return KernelStatus::kOk;
}

}  // namespace longspan
#endif  // HWY_ONCE
