// The check of a step's sparse keys, selections and page selections: the same rules as
// src/kernel/reference/sparse-check.ts.
#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "ops/step.hpp"

namespace kvasir {
namespace {

class SparseCheck {
 public:
  SparseCheck(const StepView& step, const StepLimits& limits) : step_(step), limits_(limits) {}

  int highest() const { return highest_; }

  void check(const std::string& name, const SparseKeysView& keys) {
    const size_t layers = place(name, keys.sequence, keys.group);
    require(!limits_.has_slopes, name, "belongs to a model with ALiBi slopes");
    check_slots(name, keys.slots, layers);
    require(keys.kept.size == layers && keys.budget.size == layers, name, "has no kept tokens and budget for each layer");
    require(keys.decay > 0 && keys.decay <= 1, name, "has an invalid eviction");
    for (size_t layer = 0; layer < layers; layer++) {
      const int64_t budget = keys.budget[layer], kept = keys.kept[layer];
      require(budget >= 1, name, "has no budget in layer " + std::to_string(layer));
      const int64_t most = keys.compact_every == 0 ? budget : budget + keys.compact_every - 1;
      require(kept >= 0 && kept <= most, name, "keeps " + std::to_string(kept) + " tokens in layer " + std::to_string(layer));
      check_capacity(name, keys.slots, layer, std::min(kept + rows(keys.sequence), budget + keys.compact_every));
    }
  }

  void check(const std::string& name, const KvSelectionView& selection) {
    const size_t layers = place(name, selection.sequence, selection.group);
    check_slots(name, selection.slots, layers);
    require(selection.budget.size == layers, name, "has no budget for each layer");
    require(selection.pooling_width % 2 == 1, name, "has an even pooling width: " + std::to_string(selection.pooling_width));
    const int64_t keys = last_position(selection.sequence) + 1;
    require(rows(selection.sequence) >= std::min<int64_t>(selection.observed, keys), name,
            "observes " + std::to_string(selection.observed) + " rows: the step has " + std::to_string(rows(selection.sequence)));
    for (size_t layer = 0; layer < layers; layer++) {
      require(selection.budget[layer] >= 1, name, "has no budget in layer " + std::to_string(layer));
      check_capacity(name, selection.slots, layer, std::min<int64_t>(keys, selection.budget[layer]));
    }
  }

  void check(const std::string& name, const PageSelectionView& selection) {
    require(limits_.kv_type != KvType::q8, name, "bounds q8 keys: rounded bounds would not bound them");
    const size_t layers = place(name, selection.sequence, selection.group);
    const size_t bound_pages = static_cast<size_t>(last_position(selection.sequence) / (kPageTokens * kPageTokens) + 1);
    const int full = step_.positions[step_.row_start[selection.sequence]] / kPageTokens;
    require(selection.bounds.size >= bound_pages * layers, name, "has too few pages of bounds: " + std::to_string(selection.bounds.size));
    require(selection.bounded <= full, name, "has bounds of " + std::to_string(selection.bounded) + " blocks: " + std::to_string(full) + " are full");
    require(selection.top_p > 0 && selection.top_p <= 1, name, "has an invalid budget");
    check_pages(name, selection.bounds);
  }

 private:
  static void require(bool holds, const std::string& name, const std::string& otherwise) {
    if (!holds) throw std::runtime_error("Cannot run the step: " + name + " " + otherwise);
  }

  int rows(int sequence) const { return step_.row_start[sequence + 1] - step_.row_start[sequence]; }
  int last_position(int sequence) const { return step_.positions[step_.row_start[sequence + 1] - 1]; }

  /** Layers of the group. */
  size_t place(const std::string& name, int sequence, int group) {
    require(sequence < step_.sequences(), name, "names sequence " + std::to_string(sequence));
    const bool known = static_cast<size_t>(group) < limits_.groups.size() && limits_.groups[group].window == kNoWindow;
    require(known, name, "names layer group " + std::to_string(group));
    const bool first = seen_.emplace(sequence, group).second;
    require(first, name, "is the second of sequence " + std::to_string(sequence) + " and layer group " + std::to_string(group));
    for (const RemoteKeysView& keys : step_.remote) require(keys.sequence != sequence || keys.group != group, name, "has remote keys");
    return static_cast<size_t>(limits_.groups[group].layers);
  }

  void check_slots(const std::string& name, const SlotTableView& slots, size_t layers) {
    const std::string other = "has pages that do not belong to its " + std::to_string(layers) + " layers";
    require(slots.page_start.size == layers + 1, name, other);
    require(slots.page_start[0] == 0 && static_cast<size_t>(slots.page_start[layers]) == slots.pages.size, name, other);
    for (size_t i = 0; i < layers; i++) require(slots.page_start[i] <= slots.page_start[i + 1], name, other);
    const size_t covered = slots.states.size * static_cast<size_t>(limits_.slot_pages_of_state);
    require(covered >= slots.pages.size, name, "has too few pages of slot states: " + std::to_string(slots.states.size));
    check_pages(name, slots.pages);
    check_pages(name, slots.states);
  }

  void check_capacity(const std::string& name, const SlotTableView& slots, size_t layer, int64_t needed) const {
    const int64_t has = int64_t{slots.page_start[layer + 1] - slots.page_start[layer]} * kPageTokens;
    require(has >= needed, name, "has " + std::to_string(has) + " slots in layer " + std::to_string(layer) + ": " + std::to_string(needed) + " needed");
  }

  void check_pages(const std::string& name, const Span<int32_t>& pages) {
    for (size_t i = 0; i < pages.size; i++) {
      highest_ = std::max(highest_, pages[i]);
      require(pages[i] >= 0 && pages[i] < limits_.pages, name, "names page " + std::to_string(pages[i]) + ": the pool has " + std::to_string(limits_.pages));
    }
  }

  const StepView& step_;
  const StepLimits& limits_;
  std::set<std::pair<int, int>> seen_;
  int highest_ = -1;
};

std::string numbered(const char* list, size_t index) { return std::string(list) + "[" + std::to_string(index) + "]"; }

}  // namespace

int check_sparse(const StepView& step, const StepLimits& limits) {
  SparseCheck check(step, limits);
  for (size_t i = 0; i < step.sparse.size(); i++) check.check(numbered("sparse", i), step.sparse[i]);
  for (size_t i = 0; i < step.selections.size(); i++) check.check(numbered("selections", i), step.selections[i]);
  for (size_t i = 0; i < step.page_selections.size(); i++) check.check(numbered("pageSelections", i), step.page_selections[i]);
  return check.highest();
}

bool has_slots(const StepView& step, int sequence, int group) {
  for (const SparseKeysView& keys : step.sparse)
    if (keys.sequence == sequence && keys.group == group) return true;
  return false;
}

}  // namespace kvasir
