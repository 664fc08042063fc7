// Decode for sm_80 and up: float16, head_dim up to 128.
#include "kernels/attention/decode/sm80_decode_kernel.cuh"

namespace longspan {

const DecodeInstance kSm80DecodeFp16D128 =
    MakeSm80DecodeInstance<Sm80DecodeTraits<ptx::Float16, 128>>(DType::kFloat16);

}  // namespace longspan
