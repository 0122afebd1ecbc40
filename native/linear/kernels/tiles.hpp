// Cutting rows into tiles and addressing them. Internal linkage: included by files of every instruction set.
#pragma once
#include "linear/kernels.hpp"

namespace kvasir {
namespace {

/**
 * Pointers to rows of an input, a stride apart. One address register serves three rows through address modes, so that a
 * tile of twelve rows does not run out of registers.
 */
template <int MT>
struct RowPointers {
  const uint8_t* third[(MT + 2) / 3];
  size_t stride;

  KVASIR_INLINE RowPointers(const uint8_t* first, size_t row_bytes) : stride(row_bytes) {
#pragma GCC unroll 8
    for (int i = 0; i < (MT + 2) / 3; i++) third[i] = first + 3 * static_cast<size_t>(i) * row_bytes;
  }
  KVASIR_INLINE const uint8_t* row(int m) const { return third[m / 3] + static_cast<size_t>(m % 3) * stride; }
  KVASIR_INLINE void advance(size_t bytes) {
#pragma GCC unroll 8
    for (int i = 0; i < (MT + 2) / 3; i++) third[i] += bytes;
  }
};

constexpr int kPrefetchBlocks = 16;  // blocks ahead of use; found by measurement

template <int BYTES>
KVASIR_INLINE void prefetch(const uint8_t* p) {
  for (int i = 0; i < BYTES; i += 64) __builtin_prefetch(p + i);
}

/**
 * Bytes from block `b` of a panel to the block needed `blocks_ahead` later, if NP panels are read together: `bytes`,
 * except past the panel's end, where it is the panel NP further on instead of the neighbour, which is already being
 * read.
 */
template <int NP>
KVASIR_INLINE size_t prefetch_ahead(const Segment& s, int b, size_t bytes, int blocks_ahead) {
  return b + blocks_ahead < s.blocks ? bytes : bytes + static_cast<size_t>(NP - 1) * s.panel_bytes();
}

/** Iterates over the blocks of a panel. The same block of another panel is a multiple of panel_bytes away. */
template <TensorType TYPE>
struct BlockWalk {
  const uint8_t* block;
  const uint8_t* header;  // of the block's super-block, if its type has headers

  KVASIR_INLINE BlockWalk(const Segment& s, int panel, int first) {
    header = s.data + s.panel_bytes() * static_cast<size_t>(panel) + Segment::run_bytes(TYPE, first - first % kSuperBlocks);
    block = header + kHeader + kBytes * static_cast<size_t>(first % kSuperBlocks);
    left_ = kSuperBlocks - first % kSuperBlocks;
  }
  KVASIR_INLINE void next() {
    block += kBytes;
    if (kHeader == 0 || --left_ > 0) return;
    left_ = kSuperBlocks;
    header = block;
    block += kHeader;
  }

 private:
  static constexpr size_t kBytes = Segment::block_bytes(TYPE), kHeader = Segment::header_bytes(TYPE);
  int left_;
};

/**
 * Calls body(row, integral constant of rows) for tiles that divide [row, end) into nearly equal parts of at most MAX
 * rows.
 */
template <int MAX, class F>
inline void for_tiles(int row, int end, F&& body) {
  int tiles = (end - row + MAX - 1) / MAX;
  for (; tiles > 0; tiles--) {
    int rows = (end - row + tiles - 1) / tiles;
    body(row, rows);
    row += rows;
  }
}

}  // namespace
}  // namespace kvasir
