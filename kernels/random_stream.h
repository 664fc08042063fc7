// The random numbers of sampling: one uniform number per (seed, sequence, position), as a pure
// function, the same on every device. No state: what else is in the batch, preemption or restarts
// cannot shift the stream.
#pragma once

#include <cstdint>

namespace longspan {

// 53 random bits. sequence: i of n; position: 0 for the first generated token.
constexpr uint64_t RandomBitsAt(uint64_t seed, int32_t sequence, int64_t position) {
  const auto mix =
      [](uint64_t x) {  // splitmix64's finaliser: every input bit reaches every output bit
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
      };
  // Distinct odd multipliers keep (seed, sequence, position) apart before each mixing.
  uint64_t bits = mix(seed + 0x9e3779b97f4a7c15u);
  bits = mix(bits +
             0xd1342543de82ef95u * (static_cast<uint64_t>(static_cast<uint32_t>(sequence)) + 1));
  bits = mix(bits + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(position) + 1));
  return bits >> 11;
}

// The same as a number in [0, 1).
constexpr double UniformAt(uint64_t seed, int32_t sequence, int64_t position) {
  return static_cast<double>(RandomBitsAt(seed, sequence, position)) * 0x1p-53;
}

}  // namespace longspan
