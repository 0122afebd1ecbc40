// The checksum for any machine, and its beginning and end.
#include "checksum.hpp"

#include <cstring>

namespace kvasir {
namespace {

constexpr uint64_t kMix = 0xff51afd7ed558ccdull;

uint64_t mixed(uint64_t value) {
  value ^= value >> 32;
  value *= kMix;
  return value ^ (value >> 29);
}

ChecksumLanes begin(uint64_t seed) {
  ChecksumLanes lanes;
  for (int i = 0; i < 8; i++) {
    lanes.key[i] = mixed(seed + kChecksumStep * (2 * i + 1));
    lanes.sum[i] = 0;
  }
  return lanes;
}

uint64_t end(const ChecksumLanes& lanes, size_t bytes, uint64_t seed) {
  uint64_t value = mixed(seed ^ bytes);
  for (const uint64_t sum : lanes.sum) value = mixed(value ^ sum) + kChecksumStep;
  return value;
}

void add_stripes(Isa isa, ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes) {
#if KVASIR_HAVE_AVX2
  if (isa >= Isa::avx2) return checksum_stripes_avx2(lanes, to, from, stripes);
#endif
  (void)isa;
  checksum_stripes_portable(lanes, to, from, stripes);
}

}  // namespace

void checksum_stripes_portable(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes) {
  for (size_t s = 0; s < stripes; s++, from += kChecksumStripe) {
    uint64_t words[8];
    std::memcpy(words, from, sizeof words);
    if (to != nullptr) std::memcpy(to + s * kChecksumStripe, words, sizeof words);
    for (int i = 0; i < 8; i++) {
      const uint64_t keyed = words[i] + lanes.key[i];
      lanes.sum[i] += (keyed & UINT32_MAX) * (keyed >> 32) + words[i ^ 1];
      lanes.key[i] += kChecksumStep;
    }
  }
}

uint64_t checksum(Isa isa, const void* data, size_t bytes, uint64_t seed) {
  ChecksumLanes lanes = begin(seed);
  const auto* from = static_cast<const uint8_t*>(data);
  const size_t whole = bytes / kChecksumStripe;
  add_stripes(isa, lanes, nullptr, from, whole);
  uint8_t rest[kChecksumStripe] = {};
  std::memcpy(rest, from + whole * kChecksumStripe, bytes % kChecksumStripe);
  if (bytes % kChecksumStripe != 0) add_stripes(isa, lanes, nullptr, rest, 1);
  return end(lanes, bytes, seed);
}

uint64_t checksum_copy(Isa isa, void* to, const void* from, size_t bytes, uint64_t seed) {
  ChecksumLanes lanes = begin(seed);
  add_stripes(isa, lanes, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from), bytes / kChecksumStripe);
  return end(lanes, bytes, seed);
}

}  // namespace kvasir
