// Slabs: opening and validating, and an order of writes in which a crash at any point leaves no slot that looks valid
// and is not.
#include "store/slab.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace kvasir {
namespace {

constexpr uint64_t kMagic = 0x62616c73'7369766bull;  // "kvisslab"
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 4096;
constexpr uint64_t kSlotAlignment = 4096;
static_assert(sizeof(SlabEntry) == 64, "the index has entries of 64 bytes");

/** The beginning of an index; the rest of its 4,096 bytes is zero. */
struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t unused;
  uint64_t block_bytes;
  std::array<uint8_t, 32> identity;
  uint64_t checksum;  // of the fields before it
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) { throw std::runtime_error("Cannot keep blocks at " + path + ": " + why); }

bool read_at(int file, void* to, size_t bytes, uint64_t at) {
  auto* next = static_cast<uint8_t*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(file, next, bytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    at += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool write_at(int file, const void* from, size_t bytes, uint64_t at) {
  const auto* next = static_cast<const uint8_t*>(from);
  while (bytes > 0) {
    const ssize_t put = pwrite(file, next, bytes, static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    next += put;
    at += static_cast<uint64_t>(put);
    bytes -= static_cast<size_t>(put);
  }
  return true;
}

uint64_t file_bytes(int file) {
  struct stat info = {};
  return fstat(file, &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

uint64_t free_bytes(int file) {
  struct statvfs disk = {};
  return fstatvfs(file, &disk) == 0 ? static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize : UINT64_MAX;
}

/**
 * Allocates disk space for the whole file, if the file system can. A file that does not fit is refused at once instead
 * of filling the disk.
 */
bool reserve(int file, uint64_t bytes) {
  struct stat info = {};
  const uint64_t taken = fstat(file, &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
  if (bytes > taken && bytes - taken > free_bytes(file)) {
    errno = ENOSPC;
    return false;
  }
#if defined(__linux__)
  if (fallocate(file, 0, 0, static_cast<off_t>(bytes)) == 0) return true;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
#endif
  return ftruncate(file, static_cast<off_t>(bytes)) == 0;
}

uint64_t header_checksum(Isa isa, const Header& header) { return checksum(isa, &header, offsetof(Header, checksum), 0); }
uint64_t entry_checksum(Isa isa, const SlabEntry& entry, int slot) {
  return checksum(isa, &entry, offsetof(SlabEntry, checksum), static_cast<uint64_t>(slot) + 1);
}
uint64_t contents_seed(const BlockDigest& digest) { return (static_cast<uint64_t>(digest[1]) << 32) | digest[0]; }
uint64_t contents_checksum(Isa isa, const BlockDigest& digest, const uint8_t* block, uint64_t bytes) {
  return checksum(isa, block, bytes, contents_seed(digest));
}

}  // namespace

Slab::Slab(Isa isa, const std::string& path, const SlabShape& shape) : isa_(isa), shape_(shape) {
  try {
    open_files(path);
    const bool is_new = file_bytes(index_) == 0;
    if (is_new && file_bytes(blocks_) > 0) refuse(path + ".blocks", "it exists without its index: remove it, or choose another folder");
    const std::string why = is_new ? std::string() : load_index(path + ".index");
    if (is_new || !why.empty()) reset(path + ".index");
    const std::string missing = allocate_blocks(path + ".blocks", is_new || !why.empty());
    if (!why.empty()) note_ = "Reset " + path + ".index: " + why;
    else if (!missing.empty()) note_ = missing;
  } catch (...) {
    close_files();
    throw;
  }
}

Slab::~Slab() { close_files(); }

void Slab::open_files(const std::string& path) {
  const std::string index = path + ".index", blocks = path + ".blocks";
  index_ = open(index.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (index_ < 0) refuse(index, std::strerror(errno));
  if (flock(index_, LOCK_EX | LOCK_NB) != 0) refuse(index, errno == EWOULDBLOCK ? "another process uses it" : std::strerror(errno));
  blocks_ = open(blocks.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (blocks_ < 0) refuse(blocks, std::strerror(errno));
}

void Slab::close_files() {
  if (blocks_ >= 0) close(blocks_);
  if (index_ >= 0) close(index_);
  index_ = blocks_ = -1;
}

/** Loads the index; returns why it is unusable, or an empty text. */
std::string Slab::load_index(const std::string& path) {
  Header header = {};
  const size_t size = std::min<uint64_t>(sizeof header, file_bytes(index_));
  if (!read_at(index_, &header, size, 0)) refuse(path, std::strerror(errno));
  static const Header nothing = {};
  // The first use ended before it wrote the header.
  if (std::memcmp(&header, &nothing, sizeof header) == 0) return "it was empty";
  if (size < sizeof header.magic || header.magic != kMagic) refuse(path, "it is not a block index: choose another folder");
  if (size < sizeof header) return "it was cut short";
  if (header.version != kVersion) return "it is of version " + std::to_string(header.version) + ", not " + std::to_string(kVersion);
  if (header.checksum != header_checksum(isa_, header)) return "its header is broken";
  if (header.block_bytes != shape_.block_bytes || header.identity != shape_.identity)
    return "its blocks are of another model, form, instruction set or cluster";
  read_entries();
  return {};
}

void Slab::read_entries() {
  entries_.assign(shape_.slots, SlabEntry{});
  const uint64_t listed = (std::max<uint64_t>(file_bytes(index_), kHeaderBytes) - kHeaderBytes) / sizeof(SlabEntry);
  const size_t count = std::min<uint64_t>(listed, shape_.slots);
  if (count > 0 && !read_at(index_, entries_.data(), count * sizeof(SlabEntry), kHeaderBytes)) entries_.assign(shape_.slots, SlabEntry{});
  for (int slot = 0; slot < slots(); slot++) {
    SlabEntry& entry = entries_[slot];
    if (entry.generation != 0 && entry.checksum == entry_checksum(isa_, entry, slot)) generation_ = std::max(generation_, entry.generation);
    else entry = {};
  }
  if (ftruncate(index_, static_cast<off_t>(index_bytes())) != 0) entries_.assign(shape_.slots, SlabEntry{});
  // If there is no space, the first write reports it.
  else reserve(index_, index_bytes());
}

void Slab::reset(const std::string& path) {
  entries_.assign(shape_.slots, SlabEntry{});
  Header header = {kMagic, kVersion, 0, shape_.block_bytes, shape_.identity, 0};
  header.checksum = header_checksum(isa_, header);
  const bool made = ftruncate(index_, 0) == 0 && reserve(index_, index_bytes()) && write_at(index_, &header, sizeof header, 0);
  if (!made) refuse(path, std::string("it cannot be written: ") + std::strerror(errno));
}

/** Returns a message about blocks that are missing from the file. */
std::string Slab::allocate_blocks(const std::string& path, bool is_new) {
  const uint64_t wanted = offset(slots()), size = file_bytes(blocks_);
  if (size > wanted && ftruncate(blocks_, static_cast<off_t>(wanted)) != 0) refuse(path, std::strerror(errno));
  if (!reserve(blocks_, wanted)) {
    const std::string why = std::strerror(errno);
    // Other processes may have taken the space meanwhile: returns what was allocated.
    if (size < wanted && ftruncate(blocks_, static_cast<off_t>(size)) != 0) refuse(path, std::strerror(errno));
    refuse(path, std::to_string(wanted) + " bytes are needed, " + std::to_string(free_bytes(blocks_)) + " are free: " + why);
  }
  int lost = 0;
  for (int slot = 0; !is_new && slot < slots(); slot++) {
    if (!holds(slot) || offset(slot) + shape_.block_bytes <= size) continue;
    erase(slot);
    lost++;
  }
  return lost == 0 ? std::string() : "Lost " + std::to_string(lost) + " blocks of " + path + ": it was cut to " + std::to_string(size) + " bytes";
}

uint64_t Slab::index_bytes() const { return kHeaderBytes + shape_.slots * sizeof(SlabEntry); }

uint64_t Slab::offset(int slot) const { return static_cast<uint64_t>(slot) * ((shape_.block_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment); }

bool Slab::write_entry(int slot, const SlabEntry& entry) {
  entries_[slot] = entry;
  return write_at(index_, &entry, sizeof entry, kHeaderBytes + static_cast<uint64_t>(slot) * sizeof entry);
}

bool Slab::write(int slot, const BlockDigest& digest, uint32_t depth, const uint8_t* block) {
  // The entry is erased first and written last, so a killed process leaves no entry for other contents. A power failure
  // may leave one; its checksum detects that.
  erase(slot);
  SlabEntry entry = {digest, ++generation_, contents_checksum(isa_, digest, block, shape_.block_bytes), depth, {}, 0};
  entry.checksum = entry_checksum(isa_, entry, slot);
  if (write_at(blocks_, block, shape_.block_bytes, offset(slot)) && write_entry(slot, entry)) return true;
  error_ = std::strerror(errno);
  erase(slot);
  return false;
}

bool Slab::read(int slot, const BlockDigest& digest, uint8_t* block) {
  const SlabEntry& entry = entries_[slot];
  const bool whole = holds(slot) && entry.digest == digest && read_at(blocks_, block, shape_.block_bytes, offset(slot)) &&
                     entry.contents == contents_checksum(isa_, digest, block, shape_.block_bytes);
  if (!whole) erase(slot);
  return whole;
}

Slab::Reading Slab::begin_reading(int slot, const BlockDigest& digest) const {
  return {slot, digest, RunningChecksum(isa_, contents_seed(digest)), 0, holds(slot) && entries_[slot].digest == digest};
}

void Slab::read_next(Reading& reading, uint8_t* to, uint64_t bytes) const {
  reading.valid = reading.valid && read_at(blocks_, to, bytes, offset(reading.slot) + reading.bytes);
  if (reading.valid) reading.sum.add(to, bytes);
  reading.bytes += bytes;
}

bool Slab::end_reading(const Reading& reading) {
  const SlabEntry& entry = entries_[reading.slot];
  const bool whole = reading.valid && reading.bytes == shape_.block_bytes && holds(reading.slot) && entry.digest == reading.digest &&
                     entry.contents == reading.sum.value();
  if (!whole) erase(reading.slot);
  return whole;
}

void Slab::erase(int slot) {
  if (holds(slot) && !write_entry(slot, SlabEntry{})) error_ = std::strerror(errno);
}

}  // namespace kvasir
