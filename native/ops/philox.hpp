// Counter-based random numbers, equal to those of counterUniform in src/util/counter-random.ts.
#pragma once
#include <cstdint>

namespace kvasir {

/**
 * Uniform in [0, 1) with 53 random bits: two words of Philox4x32-10 with the seed as key and `index` as counter (Salmon
 * et al., SC'11).
 */
inline double counter_uniform(uint32_t seed_low, uint32_t seed_high, uint32_t index) {
  uint32_t c0 = index, c1 = 0, c2 = 0, c3 = 0;
  uint32_t k0 = seed_low, k1 = seed_high;
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t{0xd2511f53} * c0;
    const uint64_t b = uint64_t{0xcd9e8d57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  return ((c0 >> 5) * 67108864.0 + (c1 >> 6)) / 9007199254740992.0;
}

}  // namespace kvasir
