// Decode for sm_90a: int8 keys and values, head_dim 128.
#include "kernels/attention/decode/sm90_decode_kv8_instance.cuh"

namespace longspan {

const DecodeInstance kSm90DecodeKvInt8D128 =
    MakeSm90DecodeKv8Instance<Sm90DecodeKv8Traits<ptx::Int8, 128>>(DType::kInt8);

}  // namespace longspan
