// Decode for sm_90a: int8 keys and values, head_dim 256.
#include "kernels/attention/decode/sm90_decode_kv8_instance.cuh"

namespace longspan {

const DecodeInstance kSm90DecodeKvInt8D256 =
    MakeSm90DecodeKv8Instance<Sm90DecodeKv8Traits<ptx::Int8, 256>>(DType::kInt8);

}  // namespace longspan
