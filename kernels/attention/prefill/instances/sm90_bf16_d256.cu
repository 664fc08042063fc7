// Prefill for sm_90a: bfloat16, head_dim 256.
#include "kernels/attention/prefill/sm90_prefill_instance.cuh"

namespace longspan {

const Sm90PrefillInstance kSm90PrefillBf16D256 =
    MakeSm90PrefillInstance<Sm90PrefillTraits<ptx::BFloat16, 256>>(DType::kBFloat16);

}  // namespace longspan
