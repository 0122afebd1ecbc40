// Blocks on SSD: a preallocated file of equal slots, and a small index of their contents. A crash may truncate both at
// any moment: an index entry holds its slot's checksum, so an incomplete or reordered write is never taken for a block.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/checksum.hpp"
#include "base/types.hpp"

namespace kvasir {

using BlockDigest = std::array<uint32_t, 4>;

/** The parameters of a slab. Contents written under others are unusable. */
struct SlabShape {
  uint64_t block_bytes;  // bytes of one block's pages, as in a pool
  uint32_t slots;        // may differ from the previous use
  std::array<uint8_t, 32> identity;  // of the model, the form and the block hash key
};

/** An index entry, 64 bytes, little-endian. */
struct SlabEntry {
  BlockDigest digest;
  uint64_t generation;  // increases with each write; 0: the slot is empty
  uint64_t contents;    // checksum of the slot, seeded by the digest
  uint32_t depth;       // of the block in its chain
  uint32_t unused[5];
  uint64_t checksum;    // of the fields before it, seeded by the slot number
};

/** The files `PATH.index` and `PATH.blocks`, locked by one process; one of its threads reads and writes. */
class Slab {
 public:
  /**
   * Opens or creates the files. Starts empty if they have another version, shape or identity, or are corrupt; `note`
   * states this in one line. @throws std::runtime_error in one line if the files are foreign, in use, or do not fit on
   * the disk
   */
  Slab(Isa isa, const std::string& path, const SlabShape& shape);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  const std::string& note() const { return note_; }
  uint64_t block_bytes() const { return shape_.block_bytes; }
  int slots() const { return static_cast<int>(shape_.slots); }
  /** True if the index has a block in this slot. */
  bool holds(int slot) const { return entries_[slot].generation != 0; }
  const SlabEntry& entry(int slot) const { return entries_[slot]; }

  /** False, with the system's message in `error`, if the write fails: the slot is empty then. */
  bool write(int slot, const BlockDigest& digest, uint32_t depth, const uint8_t* block);
  /** False unless the slot holds exactly this block; the slot is erased then. */
  bool read(int slot, const BlockDigest& digest, uint8_t* block);

  /** A block that is read in parts: its running checksum, and whether it can still be valid. */
  struct Reading {
    int slot;
    BlockDigest digest;
    RunningChecksum sum;
    uint64_t bytes = 0;
    bool valid;
  };
  Reading begin_reading(int slot, const BlockDigest& digest) const;
  /** Reads the next part, of whole checksum stripes. */
  void read_next(Reading& reading, uint8_t* to, uint64_t bytes) const;
  /** Ends a read in parts: as `read`. */
  bool end_reading(const Reading& reading);
  /** Empties the slot. */
  void erase(int slot);
  const std::string& error() const { return error_; }

 private:
  void open_files(const std::string& path);
  void close_files();
  std::string load_index(const std::string& path);
  void reset(const std::string& path);
  uint64_t index_bytes() const;
  void read_entries();
  std::string allocate_blocks(const std::string& path, bool is_new);
  bool write_entry(int slot, const SlabEntry& entry);
  uint64_t offset(int slot) const;

  Isa isa_;
  SlabShape shape_;
  int index_ = -1, blocks_ = -1;  // file descriptors
  std::vector<SlabEntry> entries_;
  uint64_t generation_ = 0;
  std::string note_, error_;
};

}  // namespace kvasir
