// Large memory from the system: mappings aligned to huge pages, sized against what is available before they are made.
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
  /** Throws std::runtime_error with the figures when `bytes` exceed the available memory; `what` names the use. */
  Mapping(size_t bytes, const std::string& what);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* raw_ = nullptr;  // as mapped, before alignment
  size_t raw_bytes_ = 0;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

/** Throws std::runtime_error with the figures when `bytes` exceed the available memory; `what` names the use. */
void require_available(size_t bytes, const std::string& what);

struct MemoryInfo {
  uint64_t resident_bytes;
  uint64_t resident_peak_bytes;
  uint64_t anonymous_bytes;  // resident and not backed by a file on disk, shared memory included; 0 where the system does not say
  uint64_t available_bytes;  // to this process: of the machine and of its control group
};

MemoryInfo memory_info();

/** Gives back to the system what `malloc` keeps of freed memory, in the arenas of all threads; does nothing where there is no way to. */
void trim_heap();

}  // namespace kvasir
