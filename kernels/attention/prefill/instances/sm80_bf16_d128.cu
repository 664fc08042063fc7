// Prefill for sm_80 and up: bfloat16, head_dim up to 128.
#include "kernels/attention/prefill/sm80_prefill_kernel.cuh"

namespace longspan {

const Sm80PrefillInstance kSm80PrefillBf16D128 =
    MakeSm80PrefillInstance<Sm80PrefillTraits<ptx::BFloat16, 128>>(DType::kBFloat16);

}  // namespace longspan
