// Long contexts on a GPU against the double oracle, and many launches: neither device nor host
// memory grows. For every kind of attention kernel, through the drop-in's C functions.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "kernels/gpu.h"
#include "tests/kernels/attention/attention_kernel.h"

namespace longspan {
namespace {

struct Sized {
  explicit Sized(const AttentionCase& spec)
      : problem(spec), oracle(AttentionOracle(problem.params())) {}
  PagedAttention problem;
  OracleOutput oracle;
};

// Few heads and few rows, so that the oracle is affordable. Both are made at once, for all kinds.
class LongContext : public AttentionKernel {
 protected:
  static void SetUpTestSuite() {
    if (!NoSm80Device().empty()) return;
    AttentionCase spec = Case({1, 3, 2, 1}, {7, 131073, 1024, 1});
    spec.num_q_heads = 4;
    spec.num_kv_heads = 1;
    spec.block_size = 64;
    long_ = Start(spec);
    spec.head_dim = 64;
    spec.num_q_heads = 2;
    spec.q_lens = {1};
    spec.kv_lens = {1 << 20};
    longest_ = Start(spec);
  }
  static void TearDownTestSuite() {
    long_ = {};
    longest_ = {};
  }
  static void ExpectOracle(const std::shared_future<std::shared_ptr<Sized>>& made) {
    Sized& sized = *made.get();
    AttnGpuProblem device(sized.problem, GetParam().options());
    ASSERT_EQ(Run(device), "");
    EXPECT_EQ(AgainstOracle(sized.problem, sized.oracle), "");
  }

  static inline std::shared_future<std::shared_ptr<Sized>> long_, longest_;

 private:
  static std::shared_future<std::shared_ptr<Sized>> Start(const AttentionCase& spec) {
    return std::async(std::launch::async, [spec] { return std::make_shared<Sized>(spec); });
  }
};

INSTANTIATE_TEST_SUITE_P(Every, LongContext, testing::ValuesIn(kAttentionKernels),
                         AttentionKernel::Name);

TEST_P(LongContext, Of131073TokensBesideShortOnes) { ExpectOracle(long_); }
TEST_P(LongContext, Of1048576Tokens) { ExpectOracle(longest_); }

int64_t FreeDeviceBytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(free);
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class ManyLaunches : public AttentionKernel {
 protected:
  static void Launch(AttnGpuProblem& device, int num) {
    for (int i = 0; i < num; ++i) ASSERT_EQ(device.Enqueue(), LONGSPAN_ATTN_OK);
    ASSERT_TRUE(device.stream().Synchronize().ok());
  }
};

INSTANTIATE_TEST_SUITE_P(Every, ManyLaunches, testing::ValuesIn(kAttentionKernels),
                         AttentionKernel::Name);

TEST_P(ManyLaunches, HundredThousandOfThemTakeNoMemory) {
  constexpr int kNumLaunches = 100'000, kNumAtOnce = 5'000;
  constexpr int64_t kMaxHostGrowth = int64_t{4} << 20;  // 41 bytes a launch would be more
  AttentionCase spec = Case({1, 2}, {70, 3});
  spec.head_dim = 64;
  PagedAttention problem(spec);
  AttnGpuProblem device(problem, GetParam().options());
  ASSERT_EQ(Run(device), "");
  const auto expected = problem.AllBits();
  Launch(device, kNumAtOnce);  // the runtime has what it needs from here on
  const int64_t device_before = FreeDeviceBytes(), host_before = ResidentBytes();
  for (int i = 0; i < kNumLaunches / kNumAtOnce; ++i) Launch(device, kNumAtOnce);
  EXPECT_EQ(FreeDeviceBytes(), device_before);
  EXPECT_LE(ResidentBytes() - host_before, kMaxHostGrowth);
  ASSERT_EQ(device.Download(), "");
  EXPECT_TRUE(problem.AllBits() == expected);
}

}  // namespace
}  // namespace longspan
