// The memory of the paged KV cache: keys and values of every layer in equal blocks. It knows where
// a block lies, not whom it belongs to: that is kvcache/kv_cache_manager.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/status.h"

namespace longspan {

// All layers of a model share one block table, so a block id names the same place in every layer.
struct KvPoolShape {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;  // tokens per block
  int32_t num_blocks = 0;
  DType dtype = DType::kFloat16;

  // Keys and values of one token in all layers.
  int64_t BytesPerToken() const;
  int64_t BytesPerBlock() const { return BytesPerToken() * block_size; }
  std::optional<int64_t> TotalBytes() const;  // nullopt: beyond int64
};

// One layer's keys and values: [num_blocks, block_size, num_kv_heads, head_dim], strides in
// elements, the last dimension contiguous. Keys and values share the strides.
struct KvLayerView {
  void* k = nullptr;
  void* v = nullptr;
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Engine thread only (kernels read and write through the views). Owns the memory; the engine owns
// the pool and lends it to the runner. Address space is reserved at once, memory is used by blocks
// that were written at least once.
class KvPool {
 public:
  // kResourceExhausted with need, have and the largest number of blocks that fits when memory is
  // short.
  static StatusOr<std::unique_ptr<KvPool>> Create(const KvPoolShape& shape);
  ~KvPool();
  KvPool(const KvPool&) = delete;
  KvPool& operator=(const KvPool&) = delete;

  const KvPoolShape& shape() const { return shape_; }
  int64_t size_bytes() const { return size_bytes_; }
  KvLayerView layer(int32_t index) const;

  // Copies the first num_tokens tokens of src to dst in every layer.
  void CopyBlock(BlockId src, BlockId dst, int32_t num_tokens);

  // Fills a block with NaN in every layer, to prove that nothing reads what it does not own.
  void Poison(BlockId block);

 private:
  KvPool(const KvPoolShape& shape, std::byte* memory, int64_t size_bytes);

  // [num_layers][num_blocks][key, value][num_kv_heads][block_size][head_dim]: a head's tokens of a
  // block are one run, and neighbouring blocks of a layer are neighbours in memory.
  std::byte* BlockAddress(int32_t layer, BlockId block) const;

  const KvPoolShape shape_;
  std::byte* const memory_;
  const int64_t size_bytes_;
  const int64_t block_stride_bytes_;  // of one layer
};

}  // namespace longspan
