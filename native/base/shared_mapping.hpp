// Memory that other threads and processes can map: an unnamed memory file on Linux, a shared memory object elsewhere.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir {

/** Zeroed, huge-page aligned, allocated by the system as it is touched. It is freed when the last process unmaps it. */
class SharedMapping {
 public:
  /**
   * Creates the memory; `what` names its use. @throws std::runtime_error with the figures if `bytes` exceed the
   * available memory
   */
  SharedMapping(size_t bytes, const std::string& what);
  /**
   * Maps the memory that another process of the same user created. @throws std::runtime_error unless it holds `bytes`
   */
  SharedMapping(const std::string& name, size_t bytes, const std::string& what);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /** The name by which other processes open it while this object exists. */
  const std::string& name() const { return name_; }

  /**
   * Announces use of the first `bytes`: backs them with huge pages if the system can. Thread-safe; cheap if called
   * again.
   */
  void expect_use(size_t bytes);

 private:
  void map(const std::string& what);
  void collapse(size_t chunk) const;

  std::string name_;
  int file_ = -1;
  bool owner_ = false;
  uint8_t* raw_ = nullptr;  // reserved addresses, before alignment
  size_t raw_bytes_ = 0;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  size_t expected_ = 0;  // offset below which huge pages are in place or were refused; atomic
};

/** The size of another process's memory. @throws std::runtime_error if the name does not exist */
size_t shared_object_bytes(const std::string& name);
/** Reads `count` bytes at `offset` without mapping. @throws std::runtime_error if it is shorter */
void read_shared_object(const std::string& name, size_t offset, void* out, size_t count);

}  // namespace kvasir
