// Decode for sm_80 and up: bfloat16, head_dim up to 128.
#include "kernels/attention/decode/sm80_decode_kernel.cuh"

namespace longspan {

const DecodeInstance kSm80DecodeBf16D128 =
    MakeSm80DecodeInstance<Sm80DecodeTraits<ptx::BFloat16, 128>>(DType::kBFloat16);

}  // namespace longspan
