// Matrix units of a warpgroup (wgmma, sm_90a): D[64, N] in registers += A[64, 16] * B[16, N],
// 16-bit elements, float sums. All 128 threads of four warps whose first index is a multiple of 4
// take part.
//
// D in lane (warp w, g = lane / 4, t = lane % 4): d[j][0], d[j][1] are row 16 w + g, columns
// 8 j + 2 t and the next; d[j][2], d[j][3] the same columns of row 16 w + g + 8. A in registers: as
// in matrix.cuh, of rows 16 w..16 w + 15. Until a wait says that a group is done, its D, its A
// registers and its shared memory belong to it.
#pragma once

#include <cstdint>

#include "kernels/ptx/matrix.cuh"

namespace longspan::ptx {

// Before the first product, and after registers of D or A were written.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Closes a group of products.
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending of the latest groups are not done.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// For the compiler, registers of D change at the product, not at the wait: this, behind the wait,
// keeps what uses them behind it.
template <int kCount>
__device__ __forceinline__ void WgmmaSettle(float (&d)[kCount][4]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
  }
}
// The same for registers of A, which may be written again behind it.
template <int kCount>
__device__ __forceinline__ void WgmmaSettle(uint32_t (&a)[kCount][4]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    asm volatile("" : "+r"(a[j][0]), "+r"(a[j][1]), "+r"(a[j][2]), "+r"(a[j][3])::"memory");
  }
}

// A matrix in shared memory with 128-byte rows, swizzled as Swizzle128 says, aligned to 1024 bytes.
// Rows along k (K-major): leading_bytes is not used; the next 16 k are 32 bytes further.
// Rows along n (MN-major, "transposed"): leading_bytes from 64 columns to the next 64; the next 16
// k are 2048 bytes further. In both, 8 rows to the next 8 are 1024 bytes.
struct MatrixDescriptor {
  __device__ __forceinline__ MatrixDescriptor(uint32_t address, uint32_t leading_bytes)
      : low((address & 0x3ffff) >> 4 | leading_bytes >> 4 << 16) {}
  // The matrix that many bytes further.
  __device__ __forceinline__ uint64_t At(uint32_t num_bytes) const {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32;
    return kSwizzle128 | kEightRows | (low + num_bytes / 16);
  }
  uint32_t low;
};

template <typename Element, int kColumns>
struct Wgmma;

// NOLINTBEGIN(bugprone-macro-parentheses): lists of operands
#define LONGSPAN_FOUR(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define LONGSPAN_D64                                                                        \
  LONGSPAN_FOUR(0), LONGSPAN_FOUR(1), LONGSPAN_FOUR(2), LONGSPAN_FOUR(3), LONGSPAN_FOUR(4), \
      LONGSPAN_FOUR(5), LONGSPAN_FOUR(6), LONGSPAN_FOUR(7)
#define LONGSPAN_D128                                                                     \
  LONGSPAN_D64, LONGSPAN_FOUR(8), LONGSPAN_FOUR(9), LONGSPAN_FOUR(10), LONGSPAN_FOUR(11), \
      LONGSPAN_FOUR(12), LONGSPAN_FOUR(13), LONGSPAN_FOUR(14), LONGSPAN_FOUR(15)
#define LONGSPAN_D256                                                                        \
  LONGSPAN_D128, LONGSPAN_FOUR(16), LONGSPAN_FOUR(17), LONGSPAN_FOUR(18), LONGSPAN_FOUR(19), \
      LONGSPAN_FOUR(20), LONGSPAN_FOUR(21), LONGSPAN_FOUR(22), LONGSPAN_FOUR(23),            \
      LONGSPAN_FOUR(24), LONGSPAN_FOUR(25), LONGSPAN_FOUR(26), LONGSPAN_FOUR(27),            \
      LONGSPAN_FOUR(28), LONGSPAN_FOUR(29), LONGSPAN_FOUR(30), LONGSPAN_FOUR(31)
#define LONGSPAN_R64                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
  "%30, %31"
#define LONGSPAN_R128                                                      \
  LONGSPAN_R64                                                             \
  ", "                                                                     \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
  "%60, %61, %62, %63"
#define LONGSPAN_R256                                                        \
  LONGSPAN_R128                                                              \
  ", "                                                                       \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "   \
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "   \
  "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, "   \
  "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, " \
  "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// Products: A and B by descriptors, both K-major; the sums start at 0 unless `accumulate`.
// AddTransposed: A in registers, B by an MN-major descriptor.
#define LONGSPAN_WGMMA(Element, type, columns, a0, a1, a2, a3, a4)                             \
  template <>                                                                                  \
  struct Wgmma<Element, columns> {                                                             \
    static __device__ __forceinline__ void Multiply(float (&d)[columns / 8][4], uint64_t a,    \
                                                    uint64_t b, bool accumulate) {             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " a2                                      \
                   ", 0;\n"                                                                    \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type       \
                   " {" LONGSPAN_R##columns "}, " a0 ", " a1 ", p, 1, 1, 0, 0;\n}"             \
                   : LONGSPAN_D##columns                                                       \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                       \
    }                                                                                          \
    static __device__ __forceinline__ void AddTransposed(float (&d)[columns / 8][4],           \
                                                         const uint32_t (&a)[4], uint64_t b) { \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type       \
                   " {" LONGSPAN_R##columns "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " a4         \
                                            ", 1, 1, 1, 1;"                                    \
                   : LONGSPAN_D##columns                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                      \
    }                                                                                          \
  };
LONGSPAN_WGMMA(BFloat16, "bf16", 64, "%32", "%33", "%34", "%35", "%36")
LONGSPAN_WGMMA(BFloat16, "bf16", 128, "%64", "%65", "%66", "%67", "%68")
LONGSPAN_WGMMA(BFloat16, "bf16", 256, "%128", "%129", "%130", "%131", "%132")
LONGSPAN_WGMMA(Float16, "f16", 64, "%32", "%33", "%34", "%35", "%36")
LONGSPAN_WGMMA(Float16, "f16", 128, "%64", "%65", "%66", "%67", "%68")
LONGSPAN_WGMMA(Float16, "f16", 256, "%128", "%129", "%130", "%131", "%132")
#undef LONGSPAN_WGMMA
#undef LONGSPAN_R256
#undef LONGSPAN_R128
#undef LONGSPAN_R64
#undef LONGSPAN_D256
#undef LONGSPAN_D128
#undef LONGSPAN_D64
#undef LONGSPAN_FOUR
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace longspan::ptx
