// Blocks on SSD: a file of equal slots, allocated in advance, and a small index of what is in them. Both can be cut off at any moment: an
// index entry says what its slot's contents sum up to, so what was not written whole, or not in this order, is never taken for a block.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/checksum.hpp"
#include "base/types.hpp"

namespace kvasir {

using BlockDigest = std::array<uint32_t, 4>;

/** What a slab was made for: one of another kind holds nothing that is of use. */
struct SlabShape {
  uint64_t block_bytes;  // pages of one block, as they lie in a pool
  uint32_t slots;        // may change from one use to the next
  std::array<uint8_t, 32> identity;  // of the model, the form and the key of blocks' identities
};

/** An entry of the index, 64 bytes, little-endian as everything here. */
struct SlabEntry {
  BlockDigest digest;
  uint64_t generation;  // later ones are greater; 0: the slot holds nothing
  uint64_t contents;    // checksum of the slot, under the digest
  uint32_t depth;       // of the block in its chain
  uint32_t unused[5];
  uint64_t checksum;    // of all before, under the slot's number
};

/** Files `PATH.index` and `PATH.blocks`. One process has them at a time; one of its threads reads and writes. */
class Slab {
 public:
  /**
   * Opens what is there, or makes it. Begins anew where it is of another version, shape or identity, or broken: `note` says so in one line. Throws
   * in one line where the files are somebody else's, in use, or do not fit on the disk.
   */
  Slab(Isa isa, const std::string& path, const SlabShape& shape);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  const std::string& note() const { return note_; }
  uint64_t block_bytes() const { return shape_.block_bytes; }
  int slots() const { return static_cast<int>(shape_.slots); }
  /** Whether the slot is said to hold a block. */
  bool holds(int slot) const { return entries_[slot].generation != 0; }
  const SlabEntry& entry(int slot) const { return entries_[slot]; }

  /** False, with what the system said in `error`, where it cannot be written: then the slot holds nothing. */
  bool write(int slot, const BlockDigest& digest, uint32_t depth, const uint8_t* block);
  /** False where the slot does not hold this block, whole: then it holds nothing from now on. */
  bool read(int slot, const BlockDigest& digest, uint8_t* block);

  /** A block that is read part by part: what has been read so far, and whether it can still be whole. */
  struct Reading {
    int slot;
    BlockDigest digest;
    RunningChecksum sum;
    uint64_t bytes = 0;
    bool sound;
  };
  Reading begin_reading(int slot, const BlockDigest& digest) const;
  /** The next part of it, of whole stripes of the checksum. */
  void read_on(Reading& reading, uint8_t* to, uint64_t bytes) const;
  /** All parts have been read: as `read`. */
  bool end_reading(const Reading& reading);
  /** The slot holds nothing from now on. */
  void erase(int slot);
  const std::string& error() const { return error_; }

 private:
  void open_files(const std::string& path);
  void close_files();
  std::string use_index(const std::string& path);
  void begin_anew(const std::string& path);
  uint64_t index_bytes() const;
  void read_entries();
  std::string allocate_blocks(const std::string& path, bool is_new);
  bool put_entry(int slot, const SlabEntry& entry);
  uint64_t offset(int slot) const;

  Isa isa_;
  SlabShape shape_;
  int index_ = -1, blocks_ = -1;  // descriptors
  std::vector<SlabEntry> entries_;
  uint64_t generation_ = 0;
  std::string note_, error_;
};

}  // namespace kvasir
