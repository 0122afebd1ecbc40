// Mappings, and the system's memory figures.
#include "base/memory.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace kvasir {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

/** The number after `key` in a file of `key value` lines, or kUnknown. */
uint64_t read_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    uint64_t value = 0;
    if (words >> name && name == key && words >> value) return value;
  }
  return kUnknown;
}

/** The number in a file; kUnknown for a word such as "max". */
uint64_t read_number(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : kUnknown;
}

/** What a control group still grants: its limit minus its use without page cache, which the system reclaims. */
uint64_t group_available(const char* limit_path, const char* used_path, const char* stat_path) {
  const uint64_t limit = read_number(limit_path);
  const uint64_t used = read_number(used_path);
  if (limit == kUnknown || used == kUnknown) return kUnknown;
  const uint64_t inactive = read_field(stat_path, "inactive_file");
  const uint64_t active = read_field(stat_path, "active_file");
  const uint64_t cached = (inactive == kUnknown ? 0 : inactive) + (active == kUnknown ? 0 : active);
  const uint64_t held = used > cached ? used - cached : 0;
  return limit > held ? limit - held : 0;
}

uint64_t available_bytes() {
  const uint64_t kib = read_field("/proc/meminfo", "MemAvailable:");
  const uint64_t physical = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t machine = kib == kUnknown ? physical : kib * 1024;
  const uint64_t v2 = group_available("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat");
  const uint64_t v1 = group_available("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
                                      "/sys/fs/cgroup/memory/memory.stat");
  return std::min({machine, v2, v1});
}

std::string mebibytes(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

void require_available(size_t bytes, const std::string& what) {
  const uint64_t available = available_bytes();
  if (bytes <= available) return;
  throw std::runtime_error("Cannot map memory for " + what + ": not enough available: " + mebibytes(bytes) + " requested, " +
                           mebibytes(available) + " available");
}

Mapping::Mapping(size_t bytes, const std::string& what) {
  require_available(bytes, what);
  bytes_ = (std::max<size_t>(bytes, 1) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  raw_bytes_ = bytes_ + kHugePageBytes;
  void* mapped = mmap(nullptr, raw_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw std::runtime_error("Cannot map memory for " + what + ": " + std::strerror(errno) + ": " + mebibytes(bytes) + " requested");
  }
  raw_ = static_cast<uint8_t*>(mapped);
  const uintptr_t address = reinterpret_cast<uintptr_t>(raw_);
  data_ = raw_ + ((kHugePageBytes - address % kHugePageBytes) % kHugePageBytes);
#ifdef MADV_HUGEPAGE
  // Smaller mappings would only grow to a huge page. A refusal costs speed alone.
  if (bytes >= kHugePageBytes) madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
}

Mapping::~Mapping() {
  if (raw_) munmap(raw_, raw_bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept { *this = std::move(other); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(raw_, other.raw_);
  std::swap(raw_bytes_, other.raw_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MemoryInfo memory_info() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  const uint64_t peak = static_cast<uint64_t>(usage.ru_maxrss);
#else
  const uint64_t peak = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
#endif
  const uint64_t resident = read_field("/proc/self/status", "VmRSS:");
  const uint64_t anonymous = read_field("/proc/self/status", "RssAnon:");
  const uint64_t shared = read_field("/proc/self/status", "RssShmem:");
  const uint64_t unbacked = (anonymous == kUnknown ? 0 : anonymous) + (shared == kUnknown ? 0 : shared);
  return {resident == kUnknown ? peak : resident * 1024, peak, unbacked * 1024, available_bytes()};
}

void trim_heap() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace kvasir
