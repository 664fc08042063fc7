// Prefill for sm_90a: float16, head_dim 64.
#include "kernels/attention/prefill/sm90_prefill_instance.cuh"

namespace longspan {

const Sm90PrefillInstance kSm90PrefillFp16D64 =
    MakeSm90PrefillInstance<Sm90PrefillTraits<ptx::Float16, 64>>(DType::kFloat16);

}  // namespace longspan
