// Huge-page-aligned mappings, which packed weights share.
#include "linear/weight_memory.hpp"

#include <sys/mman.h>

#include <mutex>
#include <new>

namespace kvasir {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMappingBytes = size_t{64} << 20;  // address space only: pages are allocated when touched
constexpr size_t kSliceAlign = 64;
constexpr size_t kTail = 4096;  // kernels prefetch past the end, which must stay inside the mapping

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::mutex mutex;

}  // namespace

struct WeightMemory::Mapping {
  uint8_t* raw;
  size_t raw_bytes;
  uint8_t* base;  // 2 MiB aligned
  size_t bytes;
  size_t used = 0;

  explicit Mapping(size_t wanted) : raw_bytes(wanted + kHugePage), bytes(wanted) {
    void* p = mmap(nullptr, raw_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    raw = static_cast<uint8_t*>(p);
    base = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(raw), kHugePage));
#ifdef MADV_HUGEPAGE
    madvise(base, bytes, MADV_HUGEPAGE);
#endif
  }
  ~Mapping() { munmap(raw, raw_bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

std::shared_ptr<WeightMemory::Mapping> WeightMemory::current_;

WeightMemory::WeightMemory(size_t bytes) {
  size_t slice = round_up(bytes, kSliceAlign);
  std::lock_guard<std::mutex> lock(mutex);
  if (slice + kTail > kMappingBytes / 2) {
    mapping_ = std::make_shared<Mapping>(round_up(slice + kTail, kHugePage));
  } else {
    if (!current_ || current_->used + slice + kTail > current_->bytes) current_ = std::make_shared<Mapping>(kMappingBytes);
    mapping_ = current_;
  }
  data_ = mapping_->base + mapping_->used;
  mapping_->used += slice;
}

}  // namespace kvasir
