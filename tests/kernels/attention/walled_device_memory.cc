// Maps whole pages and leaves the addresses behind them reserved and empty. The driver's functions
// are looked up: nothing links against it.
#include "tests/kernels/attention/walled_device_memory.h"

#include <cuda.h>

#include <utility>

#include "kernels/gpu.h"

namespace longspan {
namespace {

template <typename Function>
Function Find(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found;
  constexpr unsigned kFirstVersion = 12000;  // of the driver interface
  const GpuErrorCode error =
      cudaGetDriverEntryPointByVersion(name, &entry, kFirstVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Function>(entry);
}

struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity =
      Find<decltype(&cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity");
  decltype(&cuMemCreate) create = Find<decltype(&cuMemCreate)>("cuMemCreate");
  decltype(&cuMemRelease) release = Find<decltype(&cuMemRelease)>("cuMemRelease");
  decltype(&cuMemAddressReserve) reserve =
      Find<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
  decltype(&cuMemAddressFree) free = Find<decltype(&cuMemAddressFree)>("cuMemAddressFree");
  decltype(&cuMemMap) map = Find<decltype(&cuMemMap)>("cuMemMap");
  decltype(&cuMemUnmap) unmap = Find<decltype(&cuMemUnmap)>("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = Find<decltype(&cuMemSetAccess)>("cuMemSetAccess");

  bool complete() const {
    return granularity != nullptr && create != nullptr && release != nullptr &&
           reserve != nullptr && free != nullptr && map != nullptr && unmap != nullptr &&
           set_access != nullptr;
  }
};

const Driver& TheDriver() {
  static const Driver driver;
  return driver;
}

}  // namespace

std::optional<WalledDeviceMemory> WalledDeviceMemory::CopyOf(std::span<const std::byte> bytes) {
  int device = 0;
  // The second call makes the device's context, which the driver's functions work in.
  if (cudaGetDevice(&device) != cudaSuccess || cudaFree(nullptr) != cudaSuccess) {
    return std::nullopt;
  }
  const Driver& driver = TheDriver();
  if (!driver.complete()) return std::nullopt;
  CUmemAllocationProp property = {};
  property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  property.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  size_t page = 0;
  if (driver.granularity(&page, &property, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) {
    return std::nullopt;
  }
  WalledDeviceMemory memory;
  const size_t mapped = (bytes.size() + page) / page * page;
  CUdeviceptr address = 0;
  if (driver.reserve(&address, mapped + page, page, 0, 0) != CUDA_SUCCESS) return std::nullopt;
  memory.reserved_ = address;
  memory.reserved_bytes_ = mapped + page;
  CUmemGenericAllocationHandle handle = 0;
  if (driver.create(&handle, mapped, &property, 0) != CUDA_SUCCESS) return std::nullopt;
  memory.handle_ = handle;
  if (driver.map(address, mapped, 0, handle, 0) != CUDA_SUCCESS) return std::nullopt;
  memory.mapped_bytes_ = mapped;
  const CUmemAccessDesc access = {.location = property.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (driver.set_access(address, mapped, &access, 1) != CUDA_SUCCESS) return std::nullopt;
  memory.data_ = reinterpret_cast<void*>(address + mapped - (bytes.size() + 15) / 16 * 16);
  if (cudaMemcpy(memory.data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice) != cudaSuccess) {
    return std::nullopt;
  }
  return memory;
}

WalledDeviceMemory::WalledDeviceMemory(WalledDeviceMemory&& other) noexcept
    : reserved_(std::exchange(other.reserved_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      reserved_bytes_(other.reserved_bytes_),
      handle_(std::exchange(other.handle_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

WalledDeviceMemory::~WalledDeviceMemory() {
  const Driver& driver = TheDriver();
  if (mapped_bytes_ != 0) (void)driver.unmap(reserved_, mapped_bytes_);
  if (handle_ != 0) (void)driver.release(handle_);
  if (reserved_ != 0) (void)driver.free(reserved_, reserved_bytes_);
}

}  // namespace longspan
