// Encoding of tensor maps, through the driver's entry point: nothing links against the driver.
#include "kernels/runtime/tensor_map.h"

#include <cuda.h>

#include <cstring>

#include "kernels/gpu.h"

namespace longspan {
namespace {

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

EncodeFunction FindEncode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  constexpr unsigned kFirstVersion = 12000;  // of the driver interface
  const GpuErrorCode error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &entry, kFirstVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeFunction>(entry);
}

CUtensorMapDataType DataType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kBFloat16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kFloat8E4M3:
    case DType::kInt8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

bool EncodeTensorMap(const TensorMapShape& shape, TensorMap* map) {
  static const EncodeFunction encode = FindEncode();
  if (encode == nullptr) return false;
  constexpr int kRank = TensorMapShape::kRank;
  cuuint64_t extents[kRank];
  cuuint64_t strides[kRank - 1];
  cuuint32_t box[kRank];
  cuuint32_t element_strides[kRank];
  for (int i = 0; i < kRank; ++i) {
    extents[i] = static_cast<cuuint64_t>(shape.extents[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    element_strides[i] = 1;
    if (i + 1 < kRank) strides[i] = static_cast<cuuint64_t>(shape.stride_bytes[i]);
  }
  const bool is_narrow = shape.box[0] * DTypeBytes(shape.dtype) == 64;
  CUtensorMap encoded;
  const CUresult result =
      encode(&encoded, DataType(shape.dtype), kRank, const_cast<void*>(shape.base), extents,
             strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
             is_narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
             shape.is_reread ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  static_assert(sizeof(encoded) == sizeof(map->bytes));
  std::memcpy(map->bytes, &encoded, sizeof(encoded));
  return result == CUDA_SUCCESS;
}

}  // namespace longspan
