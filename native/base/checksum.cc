// The portable checksum, its initialisation and its finish.
#include "base/checksum.hpp"

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
#if KVASIR_HAVE_AVX512
  if (isa >= Isa::avx512) return checksum_stripes_avx512(lanes, to, from, stripes);
#endif
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

RunningChecksum::RunningChecksum(Isa isa, uint64_t seed) : isa_(isa), seed_(seed), lanes_(begin(seed)) {}

void RunningChecksum::add(const void* data, size_t bytes, void* to) {
  const auto* from = static_cast<const uint8_t*>(data);
  const size_t whole = bytes / kChecksumStripe * kChecksumStripe;
  add_stripes(isa_, lanes_, static_cast<uint8_t*>(to), from, whole / kChecksumStripe);
  bytes_ += bytes;
  if (whole == bytes) return;
  uint8_t rest[kChecksumStripe] = {};
  std::memcpy(rest, from + whole, bytes - whole);
  if (to != nullptr) std::memcpy(static_cast<uint8_t*>(to) + whole, rest, bytes - whole);
  add_stripes(isa_, lanes_, nullptr, rest, 1);
}

uint64_t RunningChecksum::value() const { return end(lanes_, bytes_, seed_); }

uint64_t checksum(Isa isa, const void* data, size_t bytes, uint64_t seed) {
  RunningChecksum running(isa, seed);
  running.add(data, bytes);
  return running.value();
}

}  // namespace kvasir
