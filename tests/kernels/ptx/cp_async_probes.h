// Device code that runs the wrappers of kernels/ptx/cp_async.cuh, for cp_async_test.cc. Pointers
// are device memory; everything runs on the default stream.
#pragma once

#include <cstdint>

namespace longspan {

// 64 lanes in 4 groups: lane i copies 16 bytes from `from` + 16 i, in copies of width 4, 8 or 16,
// to its place in shared memory, which held 0xee: the first num_bytes[i] from there, then zeros;
// then waits for groups one at a time. out: [4][64][16], row n as every lane's neighbour (lane i ^
// 1) saw it after waiting for groups 0..n.
void ProbeCopyAsync(int width, const uint8_t* from, const uint8_t* num_bytes, uint8_t* out);

}  // namespace longspan
