// A 64-bit checksum of bytes that travel between hosts: it detects accidents that TCP's checksum misses, not forgery.
// Eight lanes of 64 bits each add the product of their word's halves, under a key that depends on the position, and the
// neighbouring word. Any change within one word is detected.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.hpp"

namespace kvasir {

constexpr size_t kChecksumStripe = 64;

uint64_t checksum(Isa isa, const void* data, size_t bytes, uint64_t seed);

/** Keys and sums of the eight lanes. */
struct ChecksumLanes {
  alignas(64) uint64_t key[8];
  alignas(64) uint64_t sum[8];
};
constexpr uint64_t kChecksumStep = 0x9e3779b97f4a7c15ull;
/** Prefetch distance. The data is usually in memory, and the hardware prefetcher stops at 4 KiB pages. */
constexpr size_t kChecksumPrefetchBytes = 8192;

/** An incremental checksum. */
class RunningChecksum {
 public:
  RunningChecksum(Isa isa, uint64_t seed);
  /**
   * Whole stripes, except in the last call. With `to` they are copied there: the checksum is then of the copy, even if
   * `data` changes meanwhile.
   */
  void add(const void* data, size_t bytes, void* to = nullptr);
  /** Of all bytes added. */
  uint64_t value() const;

 private:
  Isa isa_;
  uint64_t seed_;
  size_t bytes_ = 0;
  ChecksumLanes lanes_;
};

/** Adds whole stripes of `from`, and copies them to `to` unless it is null. */
void checksum_stripes_portable(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes);
void checksum_stripes_avx2(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes);
void checksum_stripes_avx512(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes);

}  // namespace kvasir
