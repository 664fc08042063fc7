// Prefill for sm_80 and up: float16, head_dim up to 128.
#include "kernels/attention/prefill/sm80_prefill_kernel.cuh"

namespace longspan {

const Sm80PrefillInstance kSm80PrefillFp16D128 =
    MakeSm80PrefillInstance<Sm80PrefillTraits<ptx::Float16, 128>>(DType::kFloat16);

}  // namespace longspan
