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

  /**
   * The pages that a KV head reads for queries `q` (group, head_dim), ascending, of blocks 0 to `last`. Writes them to
   * `pages` by `page_of(block)`, and returns how many.
   */
  template <class PageOf>
  int choose(int head, const float* q, int group, int last, float scale, int32_t* pages, const PageOf& page_of) const {
    const std::vector<int32_t> blocks = chosen_blocks(head, q, group, last, scale);
    for (size_t i = 0; i < blocks.size(); i++) pages[i] = page_of(blocks[i]);
    return static_cast<int>(blocks.size());
  }

 private:
  std::vector<int32_t> chosen_blocks(int head, const float* q, int group, int last, float scale) const;
  /** (2, head_dim) in the KV type. */
  uint8_t* entry(int head, int block) const {
    const int64_t index = int64_t{block} * layers_ + layer_;
    const size_t page = static_cast<size_t>(selection_->bounds[static_cast<size_t>(index / kPageTokens)]);
    return pool_ + layout_.page_bytes() * page + share_bytes_ * head + share_bytes_ / kPageTokens * static_cast<size_t>(index % kPageTokens);
  }

  KvLayout layout_;
  uint8_t* pool_;
  size_t share_bytes_;
  const PageSelectionView* selection_;
  int layer_, layers_;
};

}  // namespace kvasir
