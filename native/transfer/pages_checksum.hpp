// The checksum of a frame's pages, part after part as they are sent or arrive.
#pragma once
#include "base/checksum.hpp"

namespace kvasir {

/** Each page's sum seeds the next one's. Pages are whole stripes. */
class PagesChecksum {
 public:
  PagesChecksum(Isa isa, uint64_t seed, size_t page_bytes) : isa_(isa), page_bytes_(page_bytes), page_(isa, seed), sum_(seed) {}

  /** Bytes so far, and where in its page the next one lies. */
  size_t bytes() const { return bytes_; }
  size_t offset() const { return bytes_ % page_bytes_; }
  /** Whole stripes of one page; with `to` they are copied there. */
  void add(const void* data, size_t bytes, void* to = nullptr) {
    page_.add(data, bytes, to);
    bytes_ += bytes;
    if (offset() != 0) return;
    sum_ = page_.value();
    page_ = RunningChecksum(isa_, sum_);
  }
  /** Of whole pages. */
  uint64_t value() const { return sum_; }

 private:
  const Isa isa_;
  const size_t page_bytes_;
  RunningChecksum page_;
  uint64_t sum_;
  size_t bytes_ = 0;
};

}  // namespace kvasir
