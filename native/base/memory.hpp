// Large memory: mappings aligned to huge pages, checked against the available memory before they are made.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir {

constexpr size_t kHugePageBytes = size_t{2} << 20;

/** A zeroed private mapping, huge-page aligned, taken from the system page by page as it is touched. */
class Mapping {
 public:
  Mapping() = default;
  /** `what` names the use. @throws std::runtime_error with the figures if `bytes` exceed the available memory */
  Mapping(size_t bytes, const std::string& what);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* raw_ = nullptr;  // before alignment
  size_t raw_bytes_ = 0;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

/** `what` names the use. @throws std::runtime_error with the figures if `bytes` exceed the available memory */
void require_available(size_t bytes, const std::string& what);

struct MemoryInfo {
  uint64_t resident_bytes;
  uint64_t resident_peak_bytes;
  uint64_t anonymous_bytes;  // resident and not backed by a file on disk, shared memory included; 0 if unknown
  uint64_t available_bytes;  // to this process: of the machine and of its control group
};

MemoryInfo memory_info();

/** Returns freed memory that `malloc` keeps to the system, in the arenas of all threads. Does nothing without glibc. */
void trim_heap();

}  // namespace kvasir
