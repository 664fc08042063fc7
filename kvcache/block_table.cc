// The ends of the two value types: a table gives its blocks back from the last to the first, a
// reservation what it still promises. Growing is KvCacheManager's work.
#include "kvcache/block_table.h"

#include "core/check.h"

namespace longspan {

BlockTable& BlockTable::operator=(BlockTable&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  allocator_ = other.allocator_;
  blocks_ = std::exchange(other.blocks_, {});
  chain_ = std::exchange(other.chain_, {});
  return *this;
}

void BlockTable::Clear() {
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    allocator_->RemoveHolder(*block);
  }
  blocks_.clear();
  chain_ = {};
}

BlockReservation& BlockReservation::operator=(BlockReservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  allocator_ = other.allocator_;
  count_ = std::exchange(other.count_, 0);
  return *this;
}

void BlockReservation::Release() {
  if (count_ > 0) allocator_->Unreserve(std::exchange(count_, 0));
}

BlockReservation BlockReservation::Split(int32_t count) {
  CHECK(count >= 0 && count <= count_, "count {} of {}", count, count_);
  count_ -= count;
  return BlockReservation(allocator_, count);
}

}  // namespace longspan
