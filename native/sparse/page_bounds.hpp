// Bounds of pages (Quest): minimum and maximum of the keys of each page, and the pages that a query reads.
#pragma once
#include "attention/attention.hpp"
#include "ops/step.hpp"

namespace kvasir {

/** Entries of the blocks of one sequence in one layer. Threads may work on different KV heads at once. */
class PageBounds {
 public:
  PageBounds(const KvLayout& layout, uint8_t* pool, const PageSelectionView& selection, int layer, int layers)
      : layout_(layout), pool_(pool), share_bytes_(layout.page_bytes() / static_cast<size_t>(layout.kv_heads)), selection_(&selection), layer_(layer), layers_(layers) {}

  /** Writes the entry of a block of which the first `tokens` keys are present. */
  void write(int head, int block, const uint8_t* page, int tokens) const;

  /** The blocks, of 0 to `last`, that a KV head reads for its queries, ascending. `q` holds all heads of the row. */
  std::vector<int32_t> choose(Isa isa, int head, const float* q, int group, int last, float scale) const;

 private:
  uint8_t* share(int head, int block) const {
    const int32_t page = selection_->bounds[static_cast<size_t>(block / kPageTokens) * layers_ + layer_];
    return pool_ + layout_.page_bytes() * static_cast<size_t>(page) + share_bytes_ * head;
  }
  /** The highest bound of the KV head's queries for each block. */
  std::vector<float> bounds_of(Isa isa, int head, const float* q, int group, int blocks) const;

  KvLayout layout_;
  uint8_t* pool_;
  size_t share_bytes_;
  const PageSelectionView* selection_;
  int layer_, layers_;
};

}  // namespace kvasir
