// Makes the table row of one instantiation; for the files in instances/ alone.
#pragma once

#include "kernels/attention/decode/decode_instance.h"
#include "kernels/attention/decode/sm90_decode_kernel.cuh"

namespace longspan {

template <typename Traits>
inline DecodeInstance MakeSm90DecodeInstance(DType dtype) {
  return {90,
          dtype,
          Traits::kHeadDim,
          reinterpret_cast<const void*>(&Sm90DecodeKernel<Traits, DecodeConsumer<Traits, true>>),
          reinterpret_cast<const void*>(&Sm90DecodeKernel<Traits, DecodeConsumer<Traits, false>>),
          Traits::kThreads,
          Traits::kSharedBytes};
}

}  // namespace longspan
