// A step's integers: counts come before the lists that they measure, so that a reader checks each list before it is
// used.
#include "workers/worker_frames.hpp"

#include <cstring>

namespace kvasir {
namespace {

constexpr int kGroupsEnd = 65, kLayersEnd = (1 << 12) + 1;  // past the most

/** Reads lists within bounds; after a failure everything read is empty. */
class WordReader {
 public:
  explicit WordReader(const std::vector<int32_t>& words) : words_(words) {}

  /** A value in [least, limit). */
  int32_t value(int32_t least, int32_t limit) {
    if (next_ >= words_.size() || words_[next_] < least || words_[next_] >= limit) {
      failed_ = true;
      return least;
    }
    return words_[next_++];
  }
  /** A list that its length precedes, of values in [least, limit). */
  std::vector<int32_t> list(int32_t least, int32_t limit) {
    const size_t count = static_cast<size_t>(value(0, INT32_MAX));
    if (failed_ || count > words_.size() - next_) {
      failed_ = true;
      return {};
    }
    std::vector<int32_t> values(words_.begin() + next_, words_.begin() + next_ + count);
    next_ += count;
    for (const int32_t each : values) failed_ = failed_ || each < least || each >= limit;
    return values;
  }
  bool has_more() const { return !failed_ && next_ < words_.size(); }
  bool finished() const { return !failed_ && next_ == words_.size(); }

 private:
  const std::vector<int32_t>& words_;
  size_t next_ = 0;
  bool failed_ = false;
};

void put(std::vector<int32_t>& words, const std::vector<int32_t>& list) {
  words.push_back(static_cast<int32_t>(list.size()));
  words.insert(words.end(), list.begin(), list.end());
}

/** True for (count + 1) ascending offsets from 0 to `end`, each at least `least` above the one before. */
bool are_offsets(const std::vector<int32_t>& offsets, size_t count, int least, size_t end) {
  if (offsets.size() != count + 1 || offsets[0] != 0 || static_cast<size_t>(offsets[count]) != end) return false;
  for (size_t i = 0; i < count; i++)
    if (offsets[i + 1] - offsets[i] < least) return false;
  return true;
}

struct SparseCounts {
  size_t numbers, lists;
};
constexpr SparseCounts kSlots = {6, 5}, kSelection = {7, 4}, kPageSelection = {5, 1};

void put(std::vector<int32_t>& words, const std::vector<ShardSparse>& entries) {
  words.push_back(static_cast<int32_t>(entries.size()));
  for (const ShardSparse& entry : entries) {
    put(words, entry.numbers);
    for (const std::vector<int32_t>& list : entry.lists) put(words, list);
  }
}

std::vector<ShardSparse> read_sparse(WordReader& in, const SparseCounts& counts, int most) {
  std::vector<ShardSparse> entries(static_cast<size_t>(in.value(0, most + 1)));
  for (ShardSparse& entry : entries) {
    entry.numbers = in.list(0, INT32_MAX);
    for (size_t i = 0; i < counts.lists; i++) entry.lists.push_back(in.list(0, INT32_MAX));
  }
  return entries;
}

int32_t bits_of(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float float_of(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::vector<int32_t> list_of(const Span<int32_t>& span, int offset = 0) {
  std::vector<int32_t> list(span.data, span.data + span.size);
  for (int32_t& each : list) each += offset;
  return list;
}

Span<int32_t> span_of(const std::vector<int32_t>& list) { return {list.data(), list.size()}; }

SlotTableView slots_of(const ShardSparse& entry) { return {span_of(entry.lists[0]), span_of(entry.lists[1]), span_of(entry.lists[2])}; }

/** (sequences): 1 if a sequence keeps only some tokens in the group, and lists no blocks there. */
std::vector<uint8_t> with_slots(const ShardStep& step, size_t group) {
  std::vector<uint8_t> found(step.positions.size());
  for (const ShardSparse& entry : step.sparse.slots) {
    if (entry.numbers.size() != kSlots.numbers || static_cast<size_t>(entry.numbers[1]) != group) continue;
    if (static_cast<size_t>(entry.numbers[0]) < found.size()) found[static_cast<size_t>(entry.numbers[0])] = 1;
  }
  return found;
}

/**
 * True if each sequence lists a block for every key that its first row sees, up to its last row; and no position is too
 * large.
 */
bool are_complete(const ShardStep& step, size_t index) {
  const ShardGroup& group = step.groups[index];
  const size_t sequences = step.positions.size();
  if (group.first_block.size() != sequences || !are_offsets(group.block_start, sequences, 0, group.blocks.size())) return false;
  if (group.pages.size() != group.changed.size() * group.layers) return false;
  const std::vector<uint8_t> in_slots = with_slots(step, index);
  for (size_t s = 0; s < sequences; s++) {
    const int64_t last = int64_t{step.positions[s]} + step.row_start[s + 1] - step.row_start[s] - 1;
    if (last >= INT32_MAX) return false;
    if (in_slots[s] != 0) continue;
    const int64_t first_seen = step.positions[s] < group.window ? 0 : int64_t{step.positions[s]} - group.window + 1;
    const int64_t listed = group.block_start[s + 1] - group.block_start[s];
    if (group.first_block[s] + listed < last / kPageTokens + 1 || int64_t{group.first_block[s]} * kPageTokens > first_seen) return false;
  }
  return true;
}

}  // namespace

void ShardSparseEntries::add(const StepView& step, const std::vector<int>& index_of, int page_offset) {
  for (const SparseKeysView& keys : step.sparse) {
    const int index = index_of[static_cast<size_t>(keys.sequence)];
    if (index < 0) continue;
    slots.push_back({{index, keys.group, keys.compact_every, keys.recent, bits_of(keys.decay), static_cast<int32_t>(keys.head_reduce)},
                     {list_of(keys.slots.pages, page_offset), list_of(keys.slots.page_start), list_of(keys.slots.states, page_offset), list_of(keys.kept), list_of(keys.budget)}});
  }
  for (const KvSelectionView& each : step.selections) {
    const int index = index_of[static_cast<size_t>(each.sequence)];
    if (index < 0) continue;
    selections.push_back({{index, each.group, each.observed, each.recent, static_cast<int32_t>(each.pooling), each.pooling_width, static_cast<int32_t>(each.head_reduce)},
                          {list_of(each.slots.pages, page_offset), list_of(each.slots.page_start), list_of(each.slots.states, page_offset), list_of(each.budget)}});
  }
  for (const PageSelectionView& each : step.page_selections) {
    const int index = index_of[static_cast<size_t>(each.sequence)];
    if (index >= 0) page_selections.push_back({{index, each.group, each.bounded, each.budget, bits_of(each.top_p)}, {list_of(each.bounds, page_offset)}});
  }
}

bool ShardSparseEntries::view(StepView& step) const {
  constexpr int kMost = 1 << 20;
  for (const ShardSparse& entry : slots) {
    const std::vector<int32_t>& n = entry.numbers;
    if (n.size() != kSlots.numbers || n[2] > kMost || n[5] > 1) return false;
    step.sparse.push_back({n[0], n[1], slots_of(entry), span_of(entry.lists[3]), span_of(entry.lists[4]), n[2], n[3], float_of(n[4]), static_cast<HeadReduce>(n[5])});
  }
  for (const ShardSparse& entry : selections) {
    const std::vector<int32_t>& n = entry.numbers;
    if (n.size() != kSelection.numbers || n[2] < 1 || n[4] > 1 || n[5] < 1 || n[5] > kMost || n[6] > 1) return false;
    step.selections.push_back({n[0], n[1], slots_of(entry), span_of(entry.lists[3]), n[2], n[3], static_cast<Pooling>(n[4]), n[5], static_cast<HeadReduce>(n[6])});
  }
  for (const ShardSparse& entry : page_selections) {
    const std::vector<int32_t>& n = entry.numbers;
    if (n.size() != kPageSelection.numbers || n[3] < 2) return false;
    step.page_selections.push_back({n[0], n[1], span_of(entry.lists[0]), n[2], n[3], float_of(n[4])});
  }
  return true;
}

std::vector<int32_t> ShardStep::encode() const {
  std::vector<int32_t> words;
  put(words, row_start);
  put(words, positions);
  words.push_back(static_cast<int32_t>(groups.size()));
  for (const ShardGroup& group : groups) {
    words.push_back(group.layers);
    words.push_back(group.window == kNoWindow ? 0 : group.window);
    for (const auto* list : {&group.first_block, &group.block_start, &group.blocks, &group.changed, &group.pages}) put(words, *list);
  }
  if (sparse.empty()) return words;
  for (const auto* entries : {&sparse.slots, &sparse.selections, &sparse.page_selections}) put(words, *entries);
  return words;
}

bool ShardStep::decode(const std::vector<int32_t>& words, int rows, int pool_pages) {
  WordReader in(words);
  row_start = in.list(0, INT32_MAX);
  positions = in.list(0, INT32_MAX);
  if (!are_offsets(row_start, positions.size(), 1, static_cast<size_t>(rows))) return false;
  groups.resize(static_cast<size_t>(in.value(1, kGroupsEnd)));
  for (ShardGroup& group : groups) {
    group.layers = in.value(1, kLayersEnd);
    const int32_t window = in.value(0, INT32_MAX);
    group.window = window == 0 ? kNoWindow : window;
    group.first_block = in.list(0, INT32_MAX);
    group.block_start = in.list(0, INT32_MAX);
    const int32_t blocks_end = pool_pages / group.layers;  // a block has a page for each layer
    group.blocks = in.list(0, blocks_end);
    group.changed = in.list(0, blocks_end);
    group.pages = in.list(0, pool_pages);
  }
  sparse = {};
  if (in.has_more()) {
    const int most = static_cast<int>(positions.size() * groups.size());
    sparse.slots = read_sparse(in, kSlots, most);
    sparse.selections = read_sparse(in, kSelection, most);
    sparse.page_selections = read_sparse(in, kPageSelection, most);
  }
  if (!in.finished()) return false;
  for (size_t g = 0; g < groups.size(); g++)
    if (!are_complete(*this, g)) return false;
  return true;
}

}  // namespace kvasir
