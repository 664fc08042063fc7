// Turns --matmul-precision into what this processor can do, and measures how fast it reads memory,
// with the same threads that will compute.
#include "model/cpu_capabilities.h"

#include <cstdint>

#include "kernels/cpu/read_bandwidth.h"
#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

constexpr int64_t kProbeBytes = int64_t{128} << 20;  // beyond the caches
constexpr int kProbePasses = 4;

}  // namespace

StatusOr<MatmulPrecision> ResolveMatmulPrecision(const std::string& name, bool has_bfloat16) {
  if (name == "float32") return MatmulPrecision::kFloat32;
  if (name == "bfloat16" && !has_bfloat16) {
    return InvalidArgument(
        "--matmul-precision: this processor has no bfloat16 products (use auto or float32)");
  }
  return has_bfloat16 ? MatmulPrecision::kBFloat16 : MatmulPrecision::kFloat32;
}

double MeasureReadBandwidth(int threads) {
  ThreadPool pool(threads);
  return MeasureReadBandwidth(pool, kProbeBytes, kProbePasses);
}

}  // namespace longspan
