// A stream as host code passes it on: the vendor's handle without the vendor's header.
#pragma once

namespace longspan {

using GpuStreamHandle = void*;  // a cudaStream_t; null is the legacy default stream

}  // namespace longspan
