// The incremental checksum of a frame's pages.
#pragma once
#include "base/checksum.hpp"

namespace kvasir {

/** Each page's checksum seeds the next page's. A page is a whole number of stripes. */
class PagesChecksum {
 public:
  PagesChecksum(Isa isa, uint64_t seed, size_t page_bytes) : isa_(isa), page_bytes_(page_bytes), page_(isa, seed), sum_(seed) {}

  /** Bytes added, and the offset of the next byte in its page. */
  size_t bytes() const { return bytes_; }
  size_t offset() const { return bytes_ % page_bytes_; }
  /** Adds whole stripes of one page. With `to` it also copies them there. */
  void add(const void* data, size_t bytes, void* to = nullptr) {
    page_.add(data, bytes, to);
    bytes_ += bytes;
    if (offset() != 0) return;
    sum_ = page_.value();
    page_ = RunningChecksum(isa_, sum_);
  }
  /** The checksum of the complete pages so far. */
  uint64_t value() const { return sum_; }

 private:
  const Isa isa_;
  const size_t page_bytes_;
  RunningChecksum page_;
  uint64_t sum_;
  size_t bytes_ = 0;
};

}  // namespace kvasir
