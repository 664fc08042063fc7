// Prefill for sm_80 and up: 8-bit keys and values, head_dim up to 256.
#include "kernels/attention/prefill/sm80_prefill_kernel.cuh"

namespace longspan {

const Sm80PrefillInstance kSm80Prefill8BitD256 =
    MakeSm80PrefillInstance<Sm80PrefillTraits<PrefillLaunchElement, 256, 1>>(DType::kFloat16);

}  // namespace longspan
