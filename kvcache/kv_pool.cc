// Maps the pool's memory, address space first and pages as blocks are written, and finds a block in
// it: [layer][block][keys, values][kv head][token][head_dim]. Which block belongs to whom is not
// known here.
#include "kvcache/kv_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/checked_math.h"
#include "core/machine.h"

namespace longspan {
namespace {

// Below this a pool is not worth the rounding of huge pages.
constexpr int64_t kHugePageThreshold = int64_t{64} << 20;

Status OutOfMemory(const KvPoolShape& shape, int64_t need, int64_t have) {
  return MakeStatus(absl::StatusCode::kResourceExhausted,
                    "KV pool: {} blocks need {} bytes, {} are available (at most {} blocks fit)",
                    shape.num_blocks, need, have, have / shape.BytesPerBlock());
}

void* MapPages(int64_t bytes) {
  return mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// A number of blocks that would have been mapped, with a quarter of the room left for weights and
// everything else.
int64_t BlocksThatMap(const KvPoolShape& shape) {
  int64_t maps = 0, too_many = shape.num_blocks;
  while (too_many - maps > 1) {
    const int64_t middle = maps + (too_many - maps) / 2;
    const int64_t bytes = middle * shape.BytesPerBlock();
    void* memory = MapPages(bytes);
    if (memory == MAP_FAILED) {
      too_many = middle;
    } else {
      munmap(memory, static_cast<size_t>(bytes));
      maps = middle;
    }
  }
  return maps / 4 * 3;
}

Status CheckShape(const KvPoolShape& shape) {
  for (const auto& [name, value] :
       {std::pair{"num_layers", shape.num_layers}, std::pair{"num_kv_heads", shape.num_kv_heads},
        std::pair{"head_dim", shape.head_dim}, std::pair{"block_size", shape.block_size},
        std::pair{"num_blocks", shape.num_blocks}}) {
    if (value < 1) return InvalidArgument("KV pool: {} is {} (at least 1)", name, value);
  }
  return absl::OkStatus();
}

}  // namespace

int64_t KvPoolShape::BytesPerToken() const {
  return int64_t{2} * num_layers * num_kv_heads * head_dim * DTypeBytes(dtype);
}

std::optional<int64_t> KvPoolShape::TotalBytes() const {
  std::optional<int64_t> bytes = int64_t{2} * DTypeBytes(dtype) * block_size;
  for (const int64_t factor : {num_layers, num_kv_heads, head_dim, num_blocks}) {
    if (bytes) bytes = CheckedMul(*bytes, factor);
  }
  return bytes;
}

StatusOr<std::unique_ptr<KvPool>> KvPool::Create(const KvPoolShape& shape) {
  RETURN_IF_ERROR(CheckShape(shape));
  const int64_t have = MemoryLimitBytes();
  const int64_t need = shape.TotalBytes().value_or(std::numeric_limits<int64_t>::max());
  if (need > have) return OutOfMemory(shape, need, have);
  void* memory = MapPages(need);
  if (memory == MAP_FAILED) {
    const std::string reason = std::strerror(errno);
    return MakeStatus(absl::StatusCode::kResourceExhausted,
                      "KV pool: {} blocks need {} bytes, of {} the system does not map so many: {} "
                      "(at most {} blocks fit)",
                      shape.num_blocks, need, have, reason, BlocksThatMap(shape));
  }
  // Attention streams through the pool: fewer, larger pages spare it page walks. Only advice.
  if (need >= kHugePageThreshold) madvise(memory, static_cast<size_t>(need), MADV_HUGEPAGE);
  return std::unique_ptr<KvPool>(new KvPool(shape, static_cast<std::byte*>(memory), need));
}

KvPool::KvPool(const KvPoolShape& shape, std::byte* memory, int64_t size_bytes)
    : shape_(shape),
      memory_(memory),
      size_bytes_(size_bytes),
      block_stride_bytes_(shape.BytesPerBlock() / shape.num_layers) {}

KvPool::~KvPool() { munmap(memory_, static_cast<size_t>(size_bytes_)); }

KvLayerView KvPool::layer(int32_t index) const {
  CHECK(index >= 0 && index < shape_.num_layers, "layer {} of {}", index, shape_.num_layers);
  std::byte* base = BlockAddress(index, BlockId{0});
  return {.k = base,
          .v = base + block_stride_bytes_ / 2,
          .block_stride = block_stride_bytes_ / DTypeBytes(shape_.dtype),
          .token_stride = shape_.head_dim,
          .head_stride = int64_t{shape_.block_size} * shape_.head_dim};
}

void KvPool::CopyBlock(BlockId src, BlockId dst, int32_t num_tokens) {
  CHECK(num_tokens >= 0 && num_tokens <= shape_.block_size, "{} tokens of blocks of {}", num_tokens,
        shape_.block_size);
  if (src == dst || num_tokens == 0) return;
  const int64_t row_bytes = int64_t{shape_.head_dim} * DTypeBytes(shape_.dtype);
  const int64_t head_bytes = row_bytes * shape_.block_size;
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    const std::byte* from = BlockAddress(layer, src);
    std::byte* to = BlockAddress(layer, dst);
    for (int64_t run = 0; run < block_stride_bytes_; run += head_bytes) {  // keys, then values
      std::memcpy(to + run, from + run, static_cast<size_t>(row_bytes * num_tokens));
    }
  }
}

void KvPool::Poison(BlockId block) {
  // All bits set is NaN in every floating format of the pool.
  for (int32_t layer = 0; layer < shape_.num_layers; ++layer) {
    std::memset(BlockAddress(layer, block), 0xff, static_cast<size_t>(block_stride_bytes_));
  }
}

std::byte* KvPool::BlockAddress(int32_t layer, BlockId block) const {
  CHECK(ToInt(block) >= 0 && ToInt(block) < shape_.num_blocks, "block {} of {}", ToInt(block),
        shape_.num_blocks);
  return memory_ + (int64_t{layer} * shape_.num_blocks + ToInt(block)) * block_stride_bytes_;
}

}  // namespace longspan
