// Prefill for sm_90a: bfloat16, head_dim 64.
#include "kernels/attention/prefill/sm90_prefill_instance.cuh"

namespace longspan {

const Sm90PrefillInstance kSm90PrefillBf16D64 =
    MakeSm90PrefillInstance<Sm90PrefillTraits<ptx::BFloat16, 64>>(DType::kBFloat16);

}  // namespace longspan
