// A 64-bit checksum of what travels between hosts: against accidents that TCP's own lets pass, not against forgers.
// Eight lanes of 64 bits: each adds up the product of its word's halves, under a key that differs by position, and its neighbour's word, so
// that whatever is changed within one word is noticed for certain.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.hpp"

namespace kvasir {

constexpr size_t kChecksumStripe = 64;

uint64_t checksum(Isa isa, const void* data, size_t bytes, uint64_t seed);

/** Keys and sums of the lanes. */
struct ChecksumLanes {
  alignas(64) uint64_t key[8];
  alignas(64) uint64_t sum[8];
};
constexpr uint64_t kChecksumStep = 0x9e3779b97f4a7c15ull;
/** What is checked mostly comes from memory: asked for so far ahead, it is there in time. The processor's own prefetching stops at pages of 4 KiB. */
constexpr size_t kChecksumPrefetchBytes = 8192;

/** A checksum of bytes that come bit by bit. */
class RunningChecksum {
 public:
  RunningChecksum(Isa isa, uint64_t seed);
  /** Whole stripes, but for the last call. With `to` they are copied there: the checksum is of what is there then, though `data` be written meanwhile. */
  void add(const void* data, size_t bytes, void* to = nullptr);
  /** Of all that was added. */
  uint64_t value() const;

 private:
  Isa isa_;
  uint64_t seed_;
  size_t bytes_ = 0;
  ChecksumLanes lanes_;
};

/** Whole stripes of `from`, copied to `to` unless that is null. */
void checksum_stripes_portable(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes);
void checksum_stripes_avx2(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes);
void checksum_stripes_avx512(ChecksumLanes& lanes, uint8_t* to, const uint8_t* from, size_t stripes);

}  // namespace kvasir
