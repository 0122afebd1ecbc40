// Memory that other threads and processes can map too: a nameless file in memory on Linux, a shared memory object elsewhere.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir {

/** Zeroed, huge-page aligned, taken from the system page by page as it is touched; gone when the last process has let go of it. */
class SharedMapping {
 public:
  /** Makes it. Throws std::runtime_error with the figures when `bytes` exceed the available memory; `what` names the use. */
  SharedMapping(size_t bytes, const std::string& what);
  /** Maps what another process of the same user made, by its name there. Throws where it holds other than `bytes`. */
  SharedMapping(const std::string& name, size_t bytes, const std::string& what);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /** By which other processes find it while this one holds it. */
  const std::string& name() const { return name_; }

  /** The first `bytes` are about to be used: puts huge pages under them where the system has some. Any thread, at any time; cheap when nothing is new. */
  void expect_use(size_t bytes);

 private:
  void map(const std::string& what);
  void collapse(size_t chunk) const;

  std::string name_;
  int file_ = -1;
  bool owner_ = false;
  uint8_t* raw_ = nullptr;  // the reserved addresses, before alignment
  size_t raw_bytes_ = 0;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  size_t expected_ = 0;  // huge pages are in place, or were refused, before this offset; atomic
};

/** What another process's object holds, by its name. Throws where there is none. */
size_t shared_object_bytes(const std::string& name);
/** Reads `count` bytes at `offset` of it without mapping it. Throws where it is shorter. */
void read_shared_object(const std::string& name, size_t offset, void* out, size_t count);

}  // namespace kvasir
