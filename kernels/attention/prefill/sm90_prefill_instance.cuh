// Makes the table row of one instantiation; for the files in instances/ alone.
#pragma once

#include "kernels/attention/prefill/sm90_prefill_instance.h"
#include "kernels/attention/prefill/sm90_prefill_kernel.cuh"

namespace longspan {

template <typename Traits>
inline Sm90PrefillInstance MakeSm90PrefillInstance(DType dtype) {
  return {90,
          dtype,
          Traits::kHeadDim,
          Traits::kRows,
          reinterpret_cast<const void*>(&Sm90PrefillKernel<Traits>),
          Traits::kThreads,
          Traits::kSharedBytes};
}

}  // namespace longspan
