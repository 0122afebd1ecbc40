// Memory of packed weights: zeroed slices of large, huge-page-aligned mappings, so that many small layers share TLB
// entries.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvasir {

/** A zeroed slice of a shared mapping, 64-byte aligned. The mapping is released with its last slice. */
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
