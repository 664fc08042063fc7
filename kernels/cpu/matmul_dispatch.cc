// Which tables of kernels this processor can run. The compiler's own detection also asks the
// operating system whether it saves the wide registers.
#include <array>

#include "kernels/cpu/matmul_kernels.h"

namespace longspan {
namespace {

struct Supported {
  std::array<const MatmulKernels*, 4> tables;
  size_t count = 0;

  Supported() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi"))
      tables[count++] = &kMatmulAvx512BFloat16;
    if (avx512) tables[count++] = &kMatmulAvx512;
    if (avx2) tables[count++] = &kMatmulAvx2;
#endif
    tables[count++] = &kMatmulPortable;
  }
};

}  // namespace

std::span<const MatmulKernels* const> SupportedMatmulKernels() {
  static const Supported supported;
  return {supported.tables.data(), supported.count};
}

bool CpuHasBFloat16() { return SupportedMatmulKernels().front()->native_bfloat16; }

}  // namespace longspan
