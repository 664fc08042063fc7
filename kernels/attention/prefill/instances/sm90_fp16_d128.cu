// Prefill for sm_90a: float16, head_dim 128.
#include "kernels/attention/prefill/sm90_prefill_instance.cuh"

namespace longspan {

const Sm90PrefillInstance kSm90PrefillFp16D128 =
    MakeSm90PrefillInstance<Sm90PrefillTraits<ptx::Float16, 128>>(DType::kFloat16);

}  // namespace longspan
