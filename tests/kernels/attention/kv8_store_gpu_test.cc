// What kv_store writes into 8-bit pools is what attention reads: stored on the device with the
// pool's scales, attended there, and compared with the oracle over what the CPU stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_store.h"
#include "tests/kernels/attention/sm80_gpu_problem.h"

namespace longspan {
namespace {

KvPoolView PoolOf(const AttentionParams& p) {
  KvPoolView pool;
  pool.k = const_cast<void*>(p.k);
  pool.v = const_cast<void*>(p.v);
  pool.k_block_stride = p.k_block_stride;
  pool.k_token_stride = p.k_token_stride;
  pool.k_head_stride = p.k_head_stride;
  pool.v_block_stride = p.v_block_stride;
  pool.v_token_stride = p.v_token_stride;
  pool.v_head_stride = p.v_head_stride;
  pool.num_kv_heads = p.num_kv_heads;
  pool.head_dim = p.head_dim;
  pool.block_size = p.block_size;
  pool.dtype = p.kv_dtype;
  pool.k_scales = p.scales.k;
  pool.v_scales = p.scales.v;
  pool.k_scale_block_stride = p.scales.k_block_stride;
  pool.k_scale_head_stride = p.scales.k_head_stride;
  pool.v_scale_block_stride = p.scales.v_block_stride;
  pool.v_scale_head_stride = p.scales.v_head_stride;
  return pool;
}

template <typename T>
DeviceBuffer OnDevice(const std::vector<T>& host, GpuStream& stream) {
  const auto bytes = std::as_bytes(std::span(host));
  DeviceBuffer buffer = DeviceBuffer::Allocate(static_cast<int64_t>(bytes.size())).value();
  EXPECT_TRUE(buffer.CopyFrom(bytes, stream.handle()).ok());
  return buffer;
}

TEST(Kv8Store, AttentionReadsWhatWasStored) {
  if (const std::string reason = NoSm80Device(); !reason.empty()) GTEST_SKIP() << reason;
  for (const DType kv_dtype : {DType::kFloat8E4M3, DType::kInt8}) {
    for (const bool decode : {false, true}) {
      SCOPED_TRACE(testing::Message() << DTypeName(kv_dtype) << (decode ? " decode" : " prefill"));
      AttentionCase spec;
      spec.q_dtype = DType::kBFloat16;
      spec.kv_dtype = kv_dtype;
      spec.head_dim = 128;
      spec.num_q_heads = 8;
      spec.num_kv_heads = 2;
      spec.kv_lens = {100, 17, 64};
      spec.q_lens = {2, 1, 5};
      PagedAttention problem(spec);
      std::vector<int64_t> slots;
      for (int32_t seq = 0; seq < 3; ++seq) {
        for (int32_t at = 0; at < spec.kv_lens[seq]; ++at) {
          slots.push_back(int64_t{problem.block_table(seq)[at / 16]} * 16 + at % 16);
        }
      }
      std::vector<float> k(slots.size() * 2 * 128), v(k.size());
      for (size_t i = 0; i < k.size(); ++i) {
        k[i] = std::sin(0.37f * static_cast<float>(i % 9973));
        v[i] = std::cos(0.73f * static_cast<float>(i % 9901));
      }
      KvStoreParams store;
      store.k = k.data();
      store.v = v.data();
      store.k_token_stride = store.v_token_stride = 2 * 128;
      store.k_head_stride = store.v_head_stride = 128;
      store.slot_mapping = slots.data();
      store.num_tokens = static_cast<int64_t>(slots.size());
      store.dtype = DType::kFloat32;

      // To the device goes the pool as it was made; then each side stores into its own.
      Sm80GpuProblem device(problem, decode);
      ThreadPool pool(1);
      ASSERT_EQ(KvStoreCpu(pool, PoolOf(problem.params()), store), KernelStatus::kOk);
      const DeviceBuffer device_k = OnDevice(k, device.stream());
      const DeviceBuffer device_v = OnDevice(v, device.stream());
      const DeviceBuffer device_slots = OnDevice(slots, device.stream());
      store.k = device_k.data();
      store.v = device_v.data();
      store.slot_mapping = device_slots.as<int64_t>();
      ASSERT_EQ(KvStoreGpu(PoolOf(device.device_params()), store, device.stream().handle()),
                KernelStatus::kOk);
      ASSERT_EQ(device.Run(), "");
      EXPECT_EQ(AgainstOracle(problem, AttentionOracle(problem.params())), "");
    }
  }
}

}  // namespace
}  // namespace longspan
