// Memory of packed weights: slices of large, huge-page-aligned mappings, zeroed, so that many small layers do not each fill the TLB.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvasir {

/** A zeroed slice of a shared mapping, 64-byte aligned; the mapping goes when its last slice goes. */
class WeightMemory {
 public:
  explicit WeightMemory(size_t bytes);
  uint8_t* data() const { return data_; }

 private:
  struct Mapping;
  static std::shared_ptr<Mapping> current_;
  std::shared_ptr<Mapping> mapping_;
  uint8_t* data_;
};

}  // namespace kvasir
