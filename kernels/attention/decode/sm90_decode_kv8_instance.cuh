// Makes the table row of one instantiation on 8-bit keys and values; for the files in instances/
// alone.
#pragma once

#include "kernels/attention/decode/decode_instance.h"
#include "kernels/attention/decode/sm90_decode_kv8_kernel.cuh"

namespace longspan {

template <typename Traits>
inline DecodeInstance MakeSm90DecodeKv8Instance(DType dtype) {
  return {90,
          dtype,
          Traits::kHeadDim,
          reinterpret_cast<const void*>(&Sm90DecodeKernel<Traits, Kv8DecodeConsumer<Traits, 1>>),
          reinterpret_cast<const void*>(&Sm90DecodeKernel<Traits, Kv8DecodeConsumer<Traits, 2>>),
          Traits::kThreads,
          Traits::kSharedBytes,
          true};
}

}  // namespace longspan
