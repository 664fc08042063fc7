// Decode for sm_90a: e4m3 keys and values, head_dim 64.
#include "kernels/attention/decode/sm90_decode_kv8_instance.cuh"

namespace longspan {

const DecodeInstance kSm90DecodeKvE4M3D64 =
    MakeSm90DecodeKv8Instance<Sm90DecodeKv8Traits<ptx::E4M3, 64>>(DType::kFloat8E4M3);

}  // namespace longspan
