#include "model/cpu_capabilities.h"

#include <cstdint>

#include "kernels/cpu/read_bandwidth.h"
#include "kernels/cpu/thread_pool.h"

namespace longspan {
namespace {

constexpr int64_t kProbeBytes = int64_t{128} << 20;  // beyond the caches
constexpr int kProbePasses = 4;

}  // namespace

MatmulPrecision ResolveMatmulPrecision(const std::string& name) {
  if (name == "float32") return MatmulPrecision::kFloat32;
  if (name == "bfloat16") return MatmulPrecision::kBFloat16;
  return CpuHasBFloat16() ? MatmulPrecision::kBFloat16 : MatmulPrecision::kFloat32;
}

double MeasureReadBandwidth(int threads) {
  ThreadPool pool(threads);
  return MeasureReadBandwidth(pool, kProbeBytes, kProbePasses);
}

}  // namespace longspan
