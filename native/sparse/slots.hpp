// Slots of a sparse sequence in one layer: K and V of kept tokens, their running scores and positions.
#pragma once
#include "attention/attention.hpp"
#include "ops/step.hpp"

namespace kvasir {

/** Kept tokens of one KV head: positions, ascending, and the scores that they start with. */
struct KeptTokens {
  std::vector<int32_t> positions;
  std::vector<float> scores;  // (positions)
};

/**
 * Chooses the kept tokens of one KV head by rules 3 to 5 of KvSelection. `scores` (tokens): reduced over query heads;
 * NaN counts as 0.
 */
void keep_tokens(const float* scores, int tokens, int budget, const KvSelectionView& selection, KeptTokens& kept);

/** The slots of one layer. Threads may work on different KV heads at once. */
class LayerSlots {
 public:
  LayerSlots(const KvLayout& layout, uint8_t* pool, const SlotTableView& table, int layer)
      : layout_(layout),
        pool_(pool),
        share_bytes_(layout.page_bytes() / static_cast<size_t>(layout.kv_heads)),
        pages_(table.pages.data + table.page_start[layer]),
        states_(table.states.data),
        first_state_(int64_t{table.page_start[layer]} * kPageTokens),
        slots_of_state_(slots_of_state(layout)) {}

  /** Slots with states in one page: 8 bytes for each slot and KV head. */
  static int slots_of_state(const KvLayout& layout) { return kPageTokens * slot_pages_of_state(layout); }
  /** Pages of slots with states in one page. */
  static int slot_pages_of_state(const KvLayout& layout) {
    return layout.head_dim * (layout.type == KvType::f32 ? 4 : layout.type == KvType::bf16 ? 2 : 1) / 4;
  }

  const int32_t* pages() const { return pages_; }

  /** States of neighbouring slots. */
  struct States {
    float* scores;
    int32_t* positions;
    int count;
  };

  /** The states of slot `slot` and those behind it in the same page. */
  States states(int head, int slot) const {
    const int64_t flat = first_state_ + slot;
    uint8_t* share = share_of(states_[flat / slots_of_state_], head);
    const int at = static_cast<int>(flat % slots_of_state_);
    float* scores = reinterpret_cast<float*>(share);
    return {scores + at, reinterpret_cast<int32_t*>(scores + slots_of_state_) + at, slots_of_state_ - at};
  }

  /** Writes a new token with score 0. `k` and `v` are (head_dim) of this KV head. */
  void write(int head, int slot, int position, const float* k, const float* v) const;
  /** Copies a token from slot `from` of a page. */
  void copy(int head, int slot, const uint8_t* page, int from) const {
    copy_token(layout_.type, layout_.head_dim, page + share_bytes_ * head, from, slot_share(head, slot), slot % kPageTokens);
  }
  void set_state(int head, int slot, int32_t position, float score) const {
    const States state = states(head, slot);
    state.scores[0] = score;
    state.positions[0] = position;
  }

  /** The slot with the lowest score at a position below `before`; among equal scores the highest position. */
  int lowest(int head, int filled, int before) const;
  /**
   * Keeps `budget` of `filled` slots: those at position `recent_from` or later, then the highest scores. Slots ascend in
   * position, before and after.
   */
  void compact(int head, int filled, int budget, int recent_from) const;

 private:
  uint8_t* share_of(int32_t page, int head) const { return pool_ + layout_.page_bytes() * static_cast<size_t>(page) + share_bytes_ * head; }
  uint8_t* slot_share(int head, int slot) const { return share_of(pages_[slot / kPageTokens], head); }

  KvLayout layout_;
  uint8_t* pool_;
  size_t share_bytes_;
  const int32_t* pages_;
  const int32_t* states_;
  int64_t first_state_;
  int slots_of_state_;
};

}  // namespace kvasir
