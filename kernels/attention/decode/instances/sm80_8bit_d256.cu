// Decode for sm_80 and up: 8-bit keys and values, head_dim up to 256.
#include "kernels/attention/decode/sm80_decode_kernel.cuh"

namespace longspan {

const DecodeInstance kSm80Decode8BitD256 =
    MakeSm80DecodeInstance<Sm80DecodeTraits<DecodeLaunchElement, 256, 1>>(DType::kFloat16);

}  // namespace longspan
