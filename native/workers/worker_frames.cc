// A step's integers: counts come before the lists that they measure, so that a reader checks each list before it is
// used.
#include "workers/worker_frames.hpp"

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

/** True if each sequence lists a block for every key that its first row sees, up to its last row. */
bool are_complete(const ShardStep& step, const ShardGroup& group) {
  const size_t sequences = step.positions.size();
  if (group.first_block.size() != sequences || !are_offsets(group.block_start, sequences, 1, group.blocks.size())) return false;
  if (group.pages.size() != group.changed.size() * group.layers) return false;
  for (size_t s = 0; s < sequences; s++) {
    const int64_t last = int64_t{step.positions[s]} + step.row_start[s + 1] - step.row_start[s] - 1;
    const int64_t first_seen = step.positions[s] < group.window ? 0 : int64_t{step.positions[s]} - group.window + 1;
    const int64_t listed = group.block_start[s + 1] - group.block_start[s];
    if (last >= INT32_MAX || group.first_block[s] + listed < last / kPageTokens + 1 || int64_t{group.first_block[s]} * kPageTokens > first_seen) return false;
  }
  return true;
}

}  // namespace

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
  return words;
}

bool ShardStep::decode(const std::vector<int32_t>& words, int rows, int pool_pages) {
  WordReader in(words);
  row_start = in.list(0, INT32_MAX);
  positions = in.list(0, INT32_MAX);
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
  if (!in.finished() || !are_offsets(row_start, positions.size(), 1, static_cast<size_t>(rows))) return false;
  for (const ShardGroup& group : groups)
    if (!are_complete(*this, group)) return false;
  return true;
}

}  // namespace kvasir
