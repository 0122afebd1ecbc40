// Tasks of scoring are (sequence, KV head, range of keys): a range's keys stay in the cache while all rows pass.
#include "sparse/scoring.hpp"

#include <algorithm>
#include <cmath>

#include "attention/stream.hpp"

namespace kvasir {
namespace {

/** A thread's operands of a tile, and the sums of a range. */
struct Workspace {
  void* query;
  float* scores;
  float* max;
  float* inverse_sum;
  float* sums;  // (group, kRangeTokens)

  static size_t bytes(const StreamShape& shape) {
    const size_t rows = static_cast<size_t>(shape.rows_max);
    return align_up(4 * rows * shape.head_dim) + 4 * rows * kRangeStride + 2 * align_up(4 * rows) + align_up(4 * static_cast<size_t>(shape.group) * kRangeTokens);
  }

  Workspace(const StreamShape& shape, uint8_t* at) {
    const size_t rows = static_cast<size_t>(shape.rows_max);
    query = at;
    at += align_up(4 * rows * shape.head_dim);
    scores = reinterpret_cast<float*>(at);
    at += 4 * rows * kRangeStride;
    max = reinterpret_cast<float*>(at);
    at += align_up(4 * rows);
    inverse_sum = reinterpret_cast<float*>(at);
    at += align_up(4 * rows);
    sums = reinterpret_cast<float*>(at);
  }
};

class Scoring {
 public:
  Scoring(const AttentionArgs& args, const void* query, const float* max, const float* sum, const std::vector<KeyScoring>& list)
      : args_(args), max_(max), sum_(sum), list_(list), stream_(args, query), kernel_(find_attention_kernel(args.isa, args.layout)) {
    for (const KeyScoring& item : list) {
      first_task_.push_back(tasks_);
      tasks_ += args.layout.kv_heads * ((item.keys() - 1) / kRangeTokens + 1);
    }
  }

  int tasks() const { return tasks_; }
  const StreamShape& shape() const { return stream_.shape; }

  void run_task(int task, const Workspace& workspace) const {
    const size_t index = static_cast<size_t>(std::upper_bound(first_task_.begin(), first_task_.end(), task) - first_task_.begin()) - 1;
    const KeyScoring& item = list_[index];
    const int kv_head = (task - first_task_[index]) % args_.layout.kv_heads;
    const int range = (task - first_task_[index]) / args_.layout.kv_heads;
    const int first_key = range * kRangeTokens;
    const int count = std::min(kRangeTokens, item.keys() - first_key);
    std::fill_n(workspace.sums, static_cast<size_t>(shape().group) * kRangeTokens, 0.0f);
    score_range(item, kv_head, range, workspace);
    reduce(item.head_reduce, count, workspace.sums);
    if (item.slots == nullptr) {
      std::copy_n(workspace.sums, count, item.scores + static_cast<size_t>(kv_head) * item.keys() + first_key);
    } else {
      add_to_slots(item, kv_head, first_key, count, workspace.sums);
    }
  }

 private:
  void score_range(const KeyScoring& item, int kv_head, int range, const Workspace& workspace) const {
    const AttentionSequence sequence = item.sequence.of_kv_head(kv_head);
    const size_t head_bytes = args_.layout.page_bytes() / args_.layout.kv_heads;
    const int end_block = std::min((range + 1) * kRangePages, (item.keys() - 1) / kPageTokens + 1);
    const uint8_t* pages[kRangePages + kPrefetchPages];
    for (int i = 0; i < kRangePages + kPrefetchPages; i++) pages[i] = args_.page(sequence, std::min(range * kRangePages + i, end_block - 1)) + head_bytes * kv_head;
    const int tile_tokens = tile_tokens_max(shape().group);
    const int first_seeing = std::max(item.first_row, range * kRangeTokens - sequence.start);
    for (int token = first_seeing; token < sequence.rows; token += tile_tokens) {
      const TileRows tile = {&sequence, token, std::min(tile_tokens, sequence.rows - token), 0};
      stream_.load_queries(tile, kv_head, workspace.query);
      load_statistics(tile, kv_head, workspace);
      RangeWork work{};
      work.head_dim = shape().head_dim;
      work.group = shape().group;
      work.tokens = tile.tokens;
      work.first_position = sequence.start + token;
      work.window = kNoWindow;
      work.scale = args_.scale;
      work.softcap = args_.softcap;
      work.slopes = args_.slopes == nullptr ? nullptr : args_.slopes + static_cast<size_t>(kv_head) * shape().group;
      work.first_key = range * kRangeTokens;
      work.page_count = std::min(end_block, (tile.end_key() - 1) / kPageTokens + 1) - range * kRangePages;
      work.pages = pages;
      work.prefetch_pages = 1;
      work.query = workspace.query;
      work.scores = workspace.scores;
      kernel_.score_range(work, {workspace.max, workspace.inverse_sum, workspace.sums});
    }
  }

  void load_statistics(const TileRows& tile, int kv_head, const Workspace& workspace) const {
    for (int row = 0; row < tile.tokens * shape().group; row++) {
      const size_t token = static_cast<size_t>(tile.sequence->row + tile.token + row / shape().group);
      const size_t at = token * args_.heads + static_cast<size_t>(kv_head) * shape().group + row % shape().group;
      workspace.max[row] = max_[at];
      workspace.inverse_sum[row] = 1.0f / sum_[at];
    }
  }

  /** Reduces (group, kRangeTokens) sums to those of the first head. */
  void reduce(HeadReduce by, int count, float* sums) const {
    const int group = shape().group;
    for (int head = 1; head < group; head++) {
      const float* other = sums + static_cast<ptrdiff_t>(head) * kRangeTokens;
      for (int i = 0; i < count; i++) sums[i] = by == HeadReduce::max ? std::max(sums[i], other[i]) : sums[i] + other[i];
    }
    if (by == HeadReduce::mean && group > 1)
      for (int i = 0; i < count; i++) sums[i] /= static_cast<float>(group);
  }

  void add_to_slots(const KeyScoring& item, int kv_head, int first_slot, int count, const float* sums) const {
    for (int done = 0; done < count;) {
      const LayerSlots::States states = item.slots->states(kv_head, first_slot + done);
      const int run = std::min(states.count, count - done);
      for (int i = 0; i < run; i++) states.scores[i] = states.scores[i] * item.decay + sums[done + i];
      done += run;
    }
  }

  const AttentionArgs& args_;
  const float* max_;
  const float* sum_;
  const std::vector<KeyScoring>& list_;
  TileStream stream_;
  const AttentionKernel& kernel_;
  std::vector<int> first_task_;
  int tasks_ = 0;
};

}  // namespace

void score_keys(ThreadPool& pool, const AttentionArgs& args, const void* query, const float* max, const float* sum, const std::vector<KeyScoring>& list,
                GrowingMemory& memory) {
  const Scoring scoring(args, query, max, sum, list);
  const size_t bytes = Workspace::bytes(scoring.shape());
  uint8_t* workspaces = memory.at_least(bytes * static_cast<size_t>(pool.size()));
  pool.run(scoring.tasks(), [&](int task, int thread) { scoring.run_task(task, Workspace(scoring.shape(), workspaces + bytes * static_cast<size_t>(thread))); });
}

}  // namespace kvasir
