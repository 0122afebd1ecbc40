// Shared mappings: creating, opening by name, and huge pages.
#include "base/shared_mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "base/memory.hpp"

namespace kvasir {
namespace {

#if defined(__linux__) && !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25
#endif

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw std::runtime_error("Cannot map memory for " + what + ": " + why);
}

/** A descriptor that is closed at the end of the scope. */
struct File {
  int fd;
  explicit File(int opened) : fd(opened) {}
  ~File() {
    if (fd >= 0) close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int release() {
    const int kept = fd;
    fd = -1;
    return kept;
  }
};

#if defined(__linux__)

/** The descriptor stays open: its path under /proc is the object's name. */
int create_object(std::string& name, const std::string& what) {
  const int fd = memfd_create("kvasir", MFD_CLOEXEC);
  if (fd < 0) refuse(what, std::strerror(errno));
  name = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
  return fd;
}

int open_object(const std::string& name) { return open(name.c_str(), O_RDWR | O_CLOEXEC); }
void remove_object(const std::string&) {}

#else

int create_object(std::string& name, const std::string& what) {
  static std::atomic<int> made{0};
  name = "/kvasir-" + std::to_string(getpid()) + "-" + std::to_string(++made);
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  if (fd < 0) refuse(what, std::strerror(errno));
  return fd;
}

int open_object(const std::string& name) { return shm_open(name.c_str(), O_RDWR, 0600); }
void remove_object(const std::string& name) { shm_unlink(name.c_str()); }

#endif

size_t object_bytes(const File& file, const std::string& name) {
  struct stat info = {};
  if (file.fd < 0 || fstat(file.fd, &info) != 0) throw std::runtime_error("Cannot open shared memory " + name + ": " + std::strerror(errno));
  return static_cast<size_t>(info.st_size);
}

size_t whole_huge_pages(size_t bytes) { return (std::max<size_t>(bytes, 1) + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes; }

}  // namespace

SharedMapping::SharedMapping(size_t bytes, const std::string& what) : owner_(true), bytes_(whole_huge_pages(bytes)) {
  require_available(bytes, what);
  File file(create_object(name_, what));
  if (ftruncate(file.fd, static_cast<off_t>(bytes_)) != 0) refuse(what, std::strerror(errno));
  file_ = file.fd;
  map(what);
  file.release();
}

SharedMapping::SharedMapping(const std::string& name, size_t bytes, const std::string& what) : name_(name), bytes_(whole_huge_pages(bytes)) {
  File file(open_object(name));
  const size_t held = object_bytes(file, name);
  if (held != bytes_) refuse(what, name + " holds " + std::to_string(held) + " bytes, not " + std::to_string(bytes_));
  file_ = file.fd;
  map(what);
  file.release();
}

SharedMapping::~SharedMapping() {
  if (raw_) munmap(raw_, raw_bytes_);
  if (file_ >= 0) close(file_);
  if (owner_) remove_object(name_);
}

/** Reserves addresses with space for alignment, then maps the object at the aligned part. */
void SharedMapping::map(const std::string& what) {
  raw_bytes_ = bytes_ + kHugePageBytes;
  void* reserved = mmap(nullptr, raw_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) refuse(what, std::strerror(errno));
  raw_ = static_cast<uint8_t*>(reserved);
  const uintptr_t address = reinterpret_cast<uintptr_t>(raw_);
  uint8_t* aligned = raw_ + (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  if (mmap(aligned, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, 0) == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    munmap(raw_, raw_bytes_);
    raw_ = nullptr;
    refuse(what, why);
  }
  data_ = aligned;
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
}

void SharedMapping::expect_use(size_t bytes) {
  const size_t wanted = std::min(bytes, bytes_);
  size_t from = __atomic_load_n(&expected_, __ATOMIC_RELAXED);
  if (wanted <= from) return;
  const size_t to = whole_huge_pages(wanted);
  // One thread does the work; others may meet small pages meanwhile, which costs speed alone.
  if (!__atomic_compare_exchange_n(&expected_, &from, to, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return;
  for (size_t chunk = from; chunk < to; chunk += kHugePageBytes) collapse(chunk);
}

/**
 * Most systems give shared memory no huge pages by themselves, but collapse small ones on request. The touch makes the
 * page exist.
 */
void SharedMapping::collapse(size_t chunk) const {
#if defined(__linux__)
  __atomic_fetch_or(data_ + chunk, uint8_t{0}, __ATOMIC_RELAXED);
  madvise(data_ + chunk, kHugePageBytes, MADV_COLLAPSE);
#else
  (void)chunk;
#endif
}

size_t shared_object_bytes(const std::string& name) { return object_bytes(File(open_object(name)), name); }

void read_shared_object(const std::string& name, size_t offset, void* out, size_t count) {
  const File file(open_object(name));
  const size_t held = object_bytes(file, name);
  if (offset > held || count > held - offset || pread(file.fd, out, count, static_cast<off_t>(offset)) != static_cast<ssize_t>(count)) {
    throw std::runtime_error("Cannot read shared memory " + name + ": it holds " + std::to_string(held) + " bytes");
  }
}

}  // namespace kvasir
