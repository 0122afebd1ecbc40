// Tasks are pieces of the merge tree: those before the step's own range run first, the others after K and V are
// written.
#include "workers/shard_attention.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "attention/plan.hpp"

namespace kvasir {
namespace {

constexpr int kHeadsMost = 1 << 12;
constexpr size_t kPartialBytesMost = size_t{64} << 20;  // of a call; a longer one is computed when the keys have arrived

/** The first range with keys that the step itself writes. */
int first_open_range(const AttentionSequence& sequence) { return sequence.start / kRangeTokens; }

/** A sequence of a single row that sees keys before its own. */
bool is_prev_new(const AttentionSequence& sequence, int window) { return sequence.rows == 1 && sequence.start > 0 && window > 1; }

int ranges_of(const AttentionSequence& sequence) { return (sequence.start + sequence.rows - 1) / kRangeTokens + 1; }

}  // namespace

bool ShardAttention::begin(const WorkerFrame& frame, const std::vector<int32_t>& words) {
  // A step that comes again would give blocks the pages that they had then.
  if (frame.step != step_number_ + 1) return false;
  call_ = nullptr;
  next_call_ = 0;
  step_number_ = frame.step;
  rows_ = frame.rows;
  if (!step_.decode(words, frame.rows, pool_->pages)) return false;
  tables_.resize(step_.groups.size());
  sequences_.assign(step_.groups.size(), {});
  for (size_t g = 0; g < step_.groups.size(); g++) {
    const ShardGroup& group = step_.groups[g];
    std::vector<int32_t>& table = tables_[g];
    for (size_t i = 0; i < group.changed.size(); i++) {
      const size_t at = static_cast<size_t>(group.changed[i]) * group.layers;
      if (at + group.layers > table.size()) table.resize(at + group.layers, -1);
      std::copy_n(group.pages.begin() + i * group.layers, group.layers, table.begin() + at);
    }
    if (!has_pages(group, table)) return false;
    for (int s = 0; s < step_.sequences(); s++) {
      const int row = step_.row_start[s];
      sequences_[g].push_back({row, step_.row_start[s + 1] - row, step_.positions[s], group.blocks.data() + group.block_start[s], group.first_block[s]});
    }
  }
  return begin_sparse() && writes_each_page_once();
}

bool ShardAttention::begin_sparse() {
  view_ = {};
  row_positions_.clear();
  for (int s = 0; s < step_.sequences(); s++)
    for (int row = step_.row_start[s]; row < step_.row_start[s + 1]; row++) row_positions_.push_back(step_.positions[s] + row - step_.row_start[s]);
  view_.tokens = view_.positions = {row_positions_.data(), row_positions_.size()};
  view_.row_start = {step_.row_start.data(), step_.row_start.size()};
  answered_.assign(step_.positions.size(), 0);
  sparse_.begin(view_, answered_.data());
  in_slots_.assign(step_.groups.size(), std::vector<uint8_t>(step_.positions.size()));
  if (step_.sparse.empty()) return true;
  if (!step_.sparse.view(view_)) return false;
  StepLimits limits = {0, 0, 0, 0, 0, pool_->pages, {}};
  for (const ShardGroup& group : step_.groups) limits.groups.push_back({group.layers, group.window});
  limits.slot_pages_of_state = LayerSlots::slot_pages_of_state(pool_->layout);
  limits.kv_type = pool_->layout.type;
  try {
    check_sparse(view_, limits);
  } catch (const std::runtime_error&) {
    return false;
  }
  for (const SparseKeysView& keys : view_.sparse) {
    in_slots_[keys.group][keys.sequence] = 1;
    sequences_[keys.group][keys.sequence].is_sparse = true;
  }
  for (const PageSelectionView& selection : view_.page_selections) sequences_[selection.group][selection.sequence].is_sparse = true;
  return true;
}

/** True if no page holds keys of two places of the step: threads write the pages of several sequences at once. */
bool ShardAttention::writes_each_page_once() {
  begun_++;
  for (size_t g = 0; g < step_.groups.size(); g++) {
    const int layers = step_.groups[g].layers;
    for (const AttentionSequence& sequence : sequences_[g]) {
      if (in_slots_[g][static_cast<size_t>(&sequence - sequences_[g].data())] != 0) continue;
      const int last = (sequence.start + sequence.rows - 1) / kPageTokens;
      for (int block = sequence.start / kPageTokens; block <= last; block++) {
        const int32_t* pages = tables_[g].data() + static_cast<size_t>(sequence.blocks[block - sequence.first_block]) * layers;
        for (int layer = 0; layer < layers; layer++) {
          uint32_t& step = written_[static_cast<size_t>(pages[layer])];
          if (step == begun_) return false;
          step = begun_;
        }
      }
    }
  }
  const auto is_first = [&](const Span<int32_t>& pages) {
    for (size_t i = 0; i < pages.size; i++) {
      uint32_t& step = written_[static_cast<size_t>(pages[i])];
      if (step == begun_) return false;
      step = begun_;
    }
    return true;
  };
  for (const SparseKeysView& keys : view_.sparse)
    if (!is_first(keys.slots.pages) || !is_first(keys.slots.states)) return false;
  for (const KvSelectionView& selection : view_.selections)
    if (!is_first(selection.slots.pages) || !is_first(selection.slots.states)) return false;
  for (const PageSelectionView& selection : view_.page_selections)
    if (!is_first(selection.bounds)) return false;
  return true;
}

/** True if every block of the step has its pages. */
bool ShardAttention::has_pages(const ShardGroup& group, const std::vector<int32_t>& table) const {
  for (const int32_t block : group.blocks) {
    const size_t at = static_cast<size_t>(block) * group.layers;
    if (at + group.layers > table.size() || std::find(table.begin() + at, table.begin() + at + group.layers, -1) != table.begin() + at + group.layers) return false;
  }
  return true;
}

bool ShardAttention::accepts_query(const WorkerFrame& frame) const {
  if (call_ != nullptr || frame.step != step_number_ || frame.call != next_call_ || frame.rows != rows_ || rows_ == 0) return false;
  if (frame.group < 0 || static_cast<size_t>(frame.group) >= step_.groups.size()) return false;
  if (frame.layer < 0 || frame.layer >= step_.groups[frame.group].layers) return false;
  if (frame.heads <= 0 || frame.heads > kHeadsMost || frame.heads % pool_->layout.kv_heads != 0) return false;
  if (frame.form != AttentionForm::ranges && frame.form != AttentionForm::prev_new) return false;
  if (frame.slopes != 0 && (frame.slopes != static_cast<uint32_t>(frame.heads) || !view_.sparse.empty())) return false;
  return frame.bytes == query_row_bytes(frame.heads) * rows_;
}

void ShardAttention::query(const WorkerFrame& frame, std::vector<float> slopes, std::vector<uint8_t> query, const std::atomic<bool>& ended) {
  call_ = std::make_unique<Call>();
  Call& call = *call_;
  call.number = frame.call;
  call.group = frame.group;
  call.form = frame.form;
  call.slopes = std::move(slopes);
  call.query = std::move(query);
  const ShardGroup& group = step_.groups[frame.group];
  const std::vector<AttentionSequence>& sequences = sequences_[frame.group];
  AttentionArgs& args = call.args;
  args.isa = pool_->isa;
  args.layout = pool_->layout;
  args.pool = pool_->data();
  args.page_table = tables_[frame.group].data();
  args.layers = group.layers;
  args.layer = frame.layer;
  args.heads = frame.heads;
  args.scale = frame.scale;
  args.sequences = sequences.data();
  args.sequence_count = static_cast<int>(sequences.size());
  args.tokens = rows_;
  args.window = group.window;
  args.softcap = frame.softcap;
  args.slopes = call.slopes.empty() ? nullptr : call.slopes.data();
  args.ranges_done = &ranges_done_;
  result_.resize(static_cast<size_t>(rows_) * frame.heads * pool_->layout.head_dim);
  if (call.form == AttentionForm::ranges) {
    compute_early(call, ended);
    return;
  }
  const auto selects = [&](int index) {
    for (const KvSelectionView& selection : view_.selections)
      if (selection.sequence == index && selection.group == frame.group) return true;
    return false;
  };
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.is_sparse) continue;
    if (!is_prev_new(sequence, group.window) || selects(static_cast<int>(&sequence - sequences.data()))) call.whole.push_back(sequence);
    else call.earlier.push_back({sequence.row, 1, sequence.start - 1, sequence.blocks, sequence.first_block});
  }
  if (overlaps_) compute_earlier_keys(call);
  call.computed_early = overlaps_ && !call.earlier.empty();
}

/** Unnormalised attention of single rows over all keys before their own, with its statistics. */
void ShardAttention::compute_earlier_keys(Call& call) {
  if (call.earlier.empty()) return;
  const size_t count = static_cast<size_t>(rows_) * call.args.heads;
  call.max.resize(count);
  call.sum.resize(count);
  AttentionArgs args = call.args;
  args.sequences = call.earlier.data();
  args.sequence_count = static_cast<int>(call.earlier.size());
  // The row sees one key less than at its own position.
  if (args.window != kNoWindow) args.window--;
  attend(args, call.query, {result_.data(), call.max.data(), call.sum.data()});
}

/** (A1 S1 + A2 S2) / (S1 + S2) over earlier keys (1) and the row's own key (2), both relative to their larger score. */
void ShardAttention::combine_prev_new(const Call& call, const std::vector<uint8_t>& keys) {
  const KvLayout& layout = pool_->layout;
  const AttentionArgs& args = call.args;
  const int dim = layout.head_dim, group_heads = args.heads / layout.kv_heads;
  backend_->pool.run(static_cast<int>(call.earlier.size()), [&](int index, int) {
    const int row = call.earlier[index].row;
    std::vector<float> query(static_cast<size_t>(args.heads) * dim), kv(static_cast<size_t>(2) * layout.kv_heads * dim);
    read_query_row(pool_->isa, layout.type, args.heads, dim, call.query.data(), row, query.data());
    read_query_row(pool_->isa, layout.type, 2 * layout.kv_heads, dim, keys.data(), row, kv.data());
    round_kv(layout.type, static_cast<int>(kv.size()), kv.data());
    for (int head = 0; head < args.heads; head++) {
      const float* q = query.data() + static_cast<size_t>(head) * dim;
      const float* k = kv.data() + static_cast<size_t>(head / group_heads) * dim;
      const float* v = k + static_cast<size_t>(layout.kv_heads) * dim;
      const size_t at = static_cast<size_t>(row) * args.heads + head;
      float own = 0.0f;
      for (int i = 0; i < dim; i++) own += q[i] * k[i];
      own *= args.scale;
      if (args.softcap > 0) own = args.softcap * std::tanh(own / args.softcap);
      // Positions were counted from the token before.
      const float earlier = call.max[at] - (args.slopes == nullptr ? 0.0f : args.slopes[head]);
      const float most = std::max(earlier, own);
      const float earlier_weight = std::exp(earlier - most), own_weight = std::exp(own - most);
      const float total = call.sum[at] * earlier_weight + own_weight;
      float* out = result_.data() + at * dim;
      for (int i = 0; i < dim; i++) out[i] = (out[i] * earlier_weight + v[i] * own_weight) / total;
    }
  });
}

uint8_t* ShardAttention::attention_scratch(const AttentionArgs& args) {
  int context = 1;
  for (int s = 0; s < args.sequence_count; s++) context = std::max(context, args.sequences[s].start + args.sequences[s].rows);
  return memory_.at_least(attention_scratch_bytes(pool_->isa, pool_->layout, args.heads, backend_->pool.size(), rows_, context));
}

void ShardAttention::attend(const AttentionArgs& args, const std::vector<uint8_t>& query, const StreamOutput& output) {
  run_attention(backend_->pool, args, query.data(), output, attention_scratch(args));
}

StreamOutput ShardAttention::output_of(const Call& call) {
  if (!sparse_.any(call.group)) return {result_.data(), nullptr, nullptr};
  float* statistics = sparse_.statistics(call.args.heads);
  return {result_.data(), statistics, statistics + static_cast<size_t>(rows_) * call.args.heads, true};
}

void ShardAttention::attend_full(const Call& call, const std::vector<AttentionSequence>& sequences) {
  std::vector<AttentionSequence> full;
  std::copy_if(sequences.begin(), sequences.end(), std::back_inserter(full), [](const AttentionSequence& sequence) { return !sequence.is_sparse; });
  if (full.empty()) return;
  AttentionArgs args = call.args;
  args.sequences = full.data();
  args.sequence_count = static_cast<int>(full.size());
  attend(args, call.query, output_of(call));
}

/** Plans the pieces of each sequence, and computes those of complete ranges. */
void ShardAttention::compute_early(Call& call, const std::atomic<bool>& ended) {
  const std::vector<AttentionSequence>& sequences = sequences_[call.group];
  const bool any_complete = std::any_of(sequences.begin(), sequences.end(), [](const AttentionSequence& sequence) { return first_open_range(sequence) > 0; });
  // With a window the first range is seen only in part, so nothing is computed early.
  if (!overlaps_ || call.args.window != kNoWindow || !any_complete) return;
  const int threads = backend_->pool.size();
  const int tile_tokens = tile_tokens_max(call.args.heads / call.args.layout.kv_heads);
  long long ranges = 0;
  for (const AttentionSequence& sequence : sequences)
    ranges += static_cast<long long>(ranges_of(sequence)) * ((sequence.rows + tile_tokens - 1) / tile_tokens) * call.args.layout.kv_heads;
  const int most = subtree_ranges(ranges, threads);
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.is_sparse) continue;
    AttentionRoot root = {&sequence, 0, sequence.rows, {}, output_of(call), 0};
    const auto add = [&](int first, int count) { root.pieces.push_back({first, count, nullptr, false}); };
    add_subtrees(0, first_open_range(sequence), most, add);
    add_subtrees(first_open_range(sequence), ranges_of(sequence), most, add);
    call.roots.push_back(std::move(root));
  }
  auto pieces = std::make_unique<AttentionPieces>(call.args, call.query.data(), call.roots.data(), static_cast<int>(call.roots.size()));
  if (pieces->partial_bytes() > kPartialBytesMost) return;
  call.pieces = std::move(pieces);
  call.workspace_bytes = call.pieces->workspace_bytes();
  call.workspaces = memory_.at_least(call.workspace_bytes * threads + call.pieces->partial_bytes());
  call.pieces->use_partials(call.workspaces + call.workspace_bytes * threads);
  std::vector<int> early;
  for (int task = 0; task < call.pieces->tasks(); task++) {
    const AttentionSequence& sequence = *call.roots[call.pieces->root_of_task(task)].sequence;
    (call.pieces->piece_of_task(task).first < first_open_range(sequence) ? early : call.late).push_back(task);
  }
  call.computed_early = !early.empty();
  run_tasks(call, early, ended);
}

void ShardAttention::run_tasks(const Call& call, const std::vector<int>& tasks, const std::atomic<bool>& ended) {
  backend_->pool.run(static_cast<int>(tasks.size()), [&](int index, int thread) {
    call.pieces->run_task(tasks[index], call.workspaces + call.workspace_bytes * thread, [&] { return !ended.load(std::memory_order_relaxed); });
  });
}

bool ShardAttention::accepts_keys(const WorkerFrame& frame) const {
  const bool continues = call_ != nullptr && frame.step == step_number_ && frame.call == call_->number && frame.rows == rows_;
  return continues && frame.bytes == query_row_bytes(2 * pool_->layout.kv_heads) * rows_;
}

void ShardAttention::keys(const std::vector<uint8_t>& keys, const std::atomic<bool>& ended) {
  write_keys(*call_, keys);
  compute_late(*call_, keys, ended);
  call_ = nullptr;
  next_call_++;
}

void ShardAttention::write_keys(const Call& call, const std::vector<uint8_t>& keys) {
  const KvLayout& layout = pool_->layout;
  const int heads = 2 * layout.kv_heads;
  const std::vector<AttentionSequence>& sequences = sequences_[call.group];
  float* staged = view_.sparse.empty() ? nullptr : sparse_.staged_rows(layout);
  backend_->pool.run(static_cast<int>(sequences.size()), [&](int index, int) {
    const AttentionSequence& sequence = sequences[index];
    std::vector<float> values(static_cast<size_t>(heads) * layout.head_dim);
    for (int row = 0; row < sequence.rows; row++) {
      read_query_row(pool_->isa, layout.type, heads, layout.head_dim, keys.data(), sequence.row + row, values.data());
      if (in_slots_[call.group][index] != 0) {
        std::copy(values.begin(), values.end(), staged + values.size() * static_cast<size_t>(sequence.row + row));
        continue;
      }
      const int position = sequence.start + row;
      write_kv(pool_->isa, layout, call.args.page(sequence, position / kPageTokens), position % kPageTokens, values.data(),
               values.data() + static_cast<size_t>(layout.kv_heads) * layout.head_dim);
    }
  });
}

void ShardAttention::compute_late(Call& call, const std::vector<uint8_t>& keys, const std::atomic<bool>& ended) {
  ThreadPool& threads = backend_->pool;
  if (call.form == AttentionForm::prev_new) {
    if (!overlaps_) compute_earlier_keys(call);
    combine_prev_new(call, keys);
    attend_full(call, call.whole);
  } else if (call.pieces == nullptr) {
    attend_full(call, sequences_[call.group]);
  } else {
    run_tasks(call, call.late, ended);
    if (ended) return;
    threads.run(call.pieces->merges(), [&](int merge, int thread) { call.pieces->run_merge(merge, call.workspaces + call.workspace_bytes * thread); });
  }
  if (!sparse_.any(call.group)) return;
  const SparseAttentionCall rest = {call.args, threads, call.query.data(), output_of(call), call.group, attention_scratch(call.args)};
  sparse_.attend(rest);
  sparse_.select(rest);
}

}  // namespace kvasir
