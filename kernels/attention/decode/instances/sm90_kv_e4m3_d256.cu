// Decode for sm_90a: e4m3 keys and values, head_dim 256.
#include "kernels/attention/decode/sm90_decode_kv8_instance.cuh"

namespace longspan {

const DecodeInstance kSm90DecodeKvE4M3D256 =
    MakeSm90DecodeKv8Instance<Sm90DecodeKv8Traits<ptx::E4M3, 256>>(DType::kFloat8E4M3);

}  // namespace longspan
