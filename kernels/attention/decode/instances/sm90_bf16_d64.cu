// Decode for sm_90a: bfloat16, head_dim 64.
#include "kernels/attention/decode/sm90_decode_instance.cuh"

namespace longspan {

const DecodeInstance kSm90DecodeBf16D64 =
    MakeSm90DecodeInstance<Sm90DecodeTraits<ptx::BFloat16, 64>>(DType::kBFloat16);

}  // namespace longspan
