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
#include <cstring>

#include "kernels/cpu/split_rows.h"

namespace longspan {
namespace {

bool IsPoolType(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

KernelStatus CheckPool(const KvPoolView& pool) {
  if (!IsPoolType(pool.dtype)) return KernelStatus::kUnsupportedDType;
  if (pool.num_kv_heads < 1 || pool.head_dim < 1 || pool.block_size < 1) {
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

void StoreRow(const float* from, char* to, DType dtype, size_t count) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  auto* narrow = reinterpret_cast<uint16_t*>(to);
  const bool half = dtype == DType::kFloat16;
  size_t i = half ? HWY_DYNAMIC_DISPATCH(StoreHalves)(from, narrow, count)
                  : HWY_DYNAMIC_DISPATCH(StoreBFloats)(from, narrow, count);
  for (; i < count; ++i) narrow[i] = half ? FloatToFloat16(from[i]) : FloatToBFloat16(from[i]);
}

}  // namespace

KernelStatus KvStoreCpu(ThreadPool& threads, const KvPoolView& pool, const KvStoreParams& params) {
  if (const KernelStatus status = CheckPool(pool); status != KernelStatus::kOk) return status;
  if (params.num_tokens < 0) return KernelStatus::kBadShape;
  SplitRows(threads, params.num_tokens, int64_t{2} * pool.num_kv_heads * pool.head_dim,
            [&](int64_t begin, int64_t end) {
              for (int64_t token = begin; token < end; ++token) {
                const int64_t token_slot = params.slot_mapping[token];
                if (token_slot < 0) continue;
                const int64_t block = token_slot / pool.block_size;
                const int64_t offset = token_slot % pool.block_size;
                for (int64_t head = 0; head < pool.num_kv_heads; ++head) {
                  StoreRow(params.k + token * params.k_token_stride + head * params.k_head_stride,
                           RowOf(pool, false, block, offset, head), pool.dtype,
                           static_cast<size_t>(pool.head_dim));
                  StoreRow(params.v + token * params.v_token_stride + head * params.v_head_stride,
                           RowOf(pool, true, block, offset, head), pool.dtype,
                           static_cast<size_t>(pool.head_dim));
                }
              }
            });
  return KernelStatus::kOk;
}

}  // namespace longspan
#endif  // HWY_ONCE
