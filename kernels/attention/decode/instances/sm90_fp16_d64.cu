// Decode for sm_90a: float16, head_dim 64.
#include "kernels/attention/decode/sm90_decode_instance.cuh"

namespace longspan {

const DecodeInstance kSm90DecodeFp16D64 =
    MakeSm90DecodeInstance<Sm90DecodeTraits<ptx::Float16, 64>>(DType::kFloat16);

}  // namespace longspan
