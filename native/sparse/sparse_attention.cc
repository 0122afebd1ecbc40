// Rows of a sparse sequence depend on each other, since each may evict a token. Row i of all sequences is one wave.
#include "sparse/sparse_attention.hpp"

#include <algorithm>

#include "sparse/page_bounds.hpp"

namespace kvasir {

bool SparseAttention::any(int group) const {
  const auto in_group = [&](const auto& entry) { return entry.group == group; };
  return std::any_of(step_->sparse.begin(), step_->sparse.end(), in_group) || std::any_of(step_->selections.begin(), step_->selections.end(), in_group) ||
         std::any_of(step_->page_selections.begin(), step_->page_selections.end(), in_group);
}

void SparseAttention::attend(const SparseAttentionCall& call) {
  const AttentionArgs& args = call.args;
  std::vector<Sparse> sparse;
  std::vector<Chosen> chosen;
  int waves = 0;
  const auto rows_of = [&](int sequence) {
    const int rows = failed_sequences_[sequence] != 0 ? 0 : args.sequences[sequence].rows;
    waves = std::max(waves, rows);
    return rows;
  };
  for (const SparseKeysView& keys : step_->sparse) {
    if (keys.group != call.group) continue;
    const int budget = keys.budget[args.layer];
    sparse.push_back({&keys, LayerSlots(args.layout, args.pool, keys.slots, args.layer), budget, budget + keys.compact_every, std::min(keys.recent, budget),
                      keys.kept[args.layer], args.sequences[keys.sequence].row, rows_of(keys.sequence)});
  }
  for (const PageSelectionView& selection : step_->page_selections) {
    if (selection.group != call.group) continue;
    const size_t heads = static_cast<size_t>(args.layout.kv_heads);
    chosen.push_back({&selection, selection.bounded, args.sequences[selection.sequence].row, rows_of(selection.sequence), 0, {}, std::vector<int32_t>(heads)});
  }
  for (int i = 0; i < waves; i++) {
    std::vector<Sparse*> slotted;
    std::vector<Chosen*> paged;
    for (Sparse& each : sparse)
      if (i < each.rows) slotted.push_back(&each);
    for (Chosen& each : chosen)
      if (i < each.rows) paged.push_back(&each);
    run_wave(call, slotted, paged, i);
  }
}

void SparseAttention::run_wave(const SparseAttentionCall& call, const std::vector<Sparse*>& slotted, const std::vector<Chosen*>& paged, int row) {
  const AttentionArgs& args = call.args;
  const int kv_heads = args.layout.kv_heads, slot_tasks = static_cast<int>(slotted.size()) * kv_heads;
  for (Chosen* each : paged) {
    each->most = std::min(each->selection->budget, position_of(each->row + row) / kPageTokens + 1);
    each->pages.resize(static_cast<size_t>(kv_heads) * each->most);
  }
  const float* staged = slotted.empty() ? nullptr : staged_rows(args.layout);
  call.threads.run(slot_tasks + static_cast<int>(paged.size()) * kv_heads, [&](int task, int) {
    if (task < slot_tasks) {
      write_row(args.layout, staged, *slotted[task / kv_heads], row, task % kv_heads);
    } else {
      choose_pages(call, *paged[(task - slot_tasks) / kv_heads], row, task % kv_heads);
    }
  });
  std::vector<AttentionSequence> rows;
  std::vector<KeyScoring> scorings;
  for (Sparse* each : slotted) {
    each->filled = std::min(each->filled + 1, each->end);
    AttentionSequence sequence = {each->row + row, 1, each->filled - 1, nullptr, 0};
    sequence.pages = each->slots.pages();
    rows.push_back(sequence);
    scorings.push_back({sequence, 0, nullptr, &each->slots, each->keys->decay, each->keys->head_reduce});
  }
  for (Chosen* each : paged) {
    each->bounded = position_of(each->row + row) / kPageTokens;
    AttentionSequence sequence = {each->row + row, 1, *std::max_element(each->starts.begin(), each->starts.end()), nullptr, 0};
    sequence.pages = each->pages.data();
    sequence.page_stride = each->most;
    sequence.starts = each->starts.data();
    rows.push_back(sequence);
  }
  AttentionArgs of_rows = args;
  of_rows.sequences = rows.data();
  of_rows.sequence_count = static_cast<int>(rows.size());
  run_attention(call.threads, of_rows, call.query, call.output, call.scratch);
  if (!scorings.empty()) score_keys(call.threads, of_rows, call.query, call.output.max, call.output.sum, scorings, scoring_);
  compact(call, slotted, row);
}

/** Writes K and V of a row to a free slot, or to that of the lowest score. */
void SparseAttention::write_row(const KvLayout& layout, const float* staged, const Sparse& sparse, int row, int head) const {
  const int position = position_of(sparse.row + row);
  const float* k = staged + (static_cast<size_t>(sparse.row + row) * 2 * layout.kv_heads + head) * layout.head_dim;
  const float* v = k + static_cast<ptrdiff_t>(layout.kv_heads) * layout.head_dim;
  const int slot = sparse.filled < sparse.end ? sparse.filled : sparse.slots.lowest(head, sparse.filled, position - sparse.recent + 1);
  sparse.slots.write(head, slot, position, k, v);
}

/** Lists the pages that a KV head reads for a row, and brings the bounds up to its position. */
void SparseAttention::choose_pages(const SparseAttentionCall& call, Chosen& chosen, int row, int head) const {
  const AttentionArgs& args = call.args;
  const KvLayout& layout = args.layout;
  const AttentionSequence& sequence = args.sequences[chosen.selection->sequence];
  const PageBounds bounds(layout, args.pool, *chosen.selection, args.layer, args.layers);
  const int position = position_of(chosen.row + row), last = position / kPageTokens;
  const int group = args.heads / layout.kv_heads;
  for (int block = chosen.bounded; block <= last; block++)
    bounds.write(head, block, args.page(sequence, block), std::min(kPageTokens, position + 1 - block * kPageTokens));
  std::vector<float> query(static_cast<size_t>(args.heads) * layout.head_dim);
  read_query_row(args.isa, layout.type, args.heads, layout.head_dim, call.query, chosen.row + row, query.data());
  const auto page_of = [&](int block) {
    return args.page_table[static_cast<size_t>(sequence.blocks[block - sequence.first_block]) * args.layers + args.layer];
  };
  const std::vector<int32_t> blocks = bounds.choose(args.isa, head, query.data(), group, last, args.scale);
  std::transform(blocks.begin(), blocks.end(), chosen.pages.data() + static_cast<ptrdiff_t>(head) * chosen.most, page_of);
  chosen.starts[static_cast<size_t>(head)] = (static_cast<int>(blocks.size()) - 1) * kPageTokens + position % kPageTokens;
}

/** Compacts the slots of sequences that have filled all. */
void SparseAttention::compact(const SparseAttentionCall& call, const std::vector<Sparse*>& slotted, int row) const {
  std::vector<Sparse*> full;
  for (Sparse* each : slotted)
    if (each->keys->compact_every > 0 && each->filled == each->end) full.push_back(each);
  const int kv_heads = call.args.layout.kv_heads;
  call.threads.run(static_cast<int>(full.size()) * kv_heads, [&](int task, int) {
    const Sparse& each = *full[task / kv_heads];
    each.slots.compact(task % kv_heads, each.filled, each.budget, position_of(each.row + row) - each.recent + 1);
  });
  for (Sparse* each : full) each->filled = each->budget;
}

void SparseAttention::select(const SparseAttentionCall& call) {
  const AttentionArgs& args = call.args;
  const KvLayout& layout = args.layout;
  std::vector<const KvSelectionView*> selections;
  std::vector<KeyScoring> scorings;
  size_t values = 0;
  for (const KvSelectionView& selection : step_->selections) {
    if (selection.group != call.group || failed_sequences_[selection.sequence] != 0) continue;
    const AttentionSequence& sequence = args.sequences[selection.sequence];
    const int keys = sequence.start + sequence.rows;
    selections.push_back(&selection);
    scorings.push_back({sequence, sequence.rows - std::min(selection.observed, keys), nullptr, nullptr, 0.0f, selection.head_reduce});
    values += static_cast<size_t>(layout.kv_heads) * keys;
  }
  if (selections.empty()) return;
  auto* scores = reinterpret_cast<float*>(scores_.at_least(sizeof(float) * values));
  for (KeyScoring& scoring : scorings) {
    scoring.scores = scores;
    scores += static_cast<size_t>(layout.kv_heads) * scoring.keys();
  }
  score_keys(call.threads, args, call.query, call.output.max, call.output.sum, scorings, scoring_);
  call.threads.run(static_cast<int>(selections.size()) * layout.kv_heads, [&](int task, int) {
    const KvSelectionView& selection = *selections[task / layout.kv_heads];
    const KeyScoring& scoring = scorings[task / layout.kv_heads];
    const int head = task % layout.kv_heads, keys = scoring.keys();
    KeptTokens kept;
    keep_tokens(scoring.scores + static_cast<size_t>(head) * keys, keys, selection.budget[args.layer], selection, kept);
    const LayerSlots slots(layout, args.pool, selection.slots, args.layer);
    for (size_t slot = 0; slot < kept.positions.size(); slot++) {
      const int32_t position = kept.positions[slot];
      slots.copy(head, static_cast<int>(slot), args.page(scoring.sequence, position / kPageTokens), position % kPageTokens);
      slots.set_state(head, static_cast<int>(slot), position, kept.scores[slot]);
    }
  });
}

}  // namespace kvasir
