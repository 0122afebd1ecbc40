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
    const int rows = unanswered_[sequence] != 0 ? 0 : args.sequences[sequence].rows;
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
    chosen.push_back({&selection, selection.bounded, args.sequences[selection.sequence].row, rows_of(selection.sequence), {}, std::vector<int32_t>(heads)});
  }
  for (int i = 0; i < waves; i++) {
    Wave wave;
    for (Sparse& each : sparse)
      if (i < each.rows) write_row(call, each, each.row + i, wave);
    for (Chosen& each : chosen)
      if (i < each.rows) choose_pages(call, each, each.row + i, wave);
    AttentionArgs of_wave = args;
    of_wave.sequences = wave.rows.data();
    of_wave.sequence_count = static_cast<int>(wave.rows.size());
    run_attention(call.threads, of_wave, call.query, call.output, call.scratch);
    if (!wave.scorings.empty()) score_keys(call.threads, of_wave, call.query, call.output.max, call.output.sum, wave.scorings, scoring_);
    for (Sparse& each : sparse)
      if (i < each.rows) evict(call, each, position_of(each.row + i));
  }
}

/** Writes K and V of a row to a free slot, or to that of the lowest score. */
void SparseAttention::write_row(const SparseAttentionCall& call, Sparse& sparse, int row, Wave& wave) {
  const KvLayout& layout = call.args.layout;
  const int position = position_of(row), dim = layout.head_dim;
  const float* k = staged_rows(layout) + static_cast<size_t>(row) * 2 * layout.kv_heads * dim;
  const float* v = k + static_cast<ptrdiff_t>(layout.kv_heads) * dim;
  call.threads.run(layout.kv_heads, [&](int head, int) {
    const int slot = sparse.filled < sparse.end ? sparse.filled : sparse.slots.lowest(head, sparse.filled, position - sparse.recent + 1);
    sparse.slots.write(head, slot, position, k + static_cast<ptrdiff_t>(head) * dim, v + static_cast<ptrdiff_t>(head) * dim);
  });
  sparse.filled = std::min(sparse.filled + 1, sparse.end);
  AttentionSequence sequence = {row, 1, sparse.filled - 1, nullptr, 0};
  sequence.pages = sparse.slots.pages();
  wave.rows.push_back(sequence);
  wave.scorings.push_back({sequence, 0, nullptr, &sparse.slots, sparse.keys->decay, sparse.keys->head_reduce});
}

/** Compacts the slots once all that may be filled are. */
void SparseAttention::evict(const SparseAttentionCall& call, Sparse& sparse, int position) {
  if (sparse.keys->compact_every == 0 || sparse.filled < sparse.end) return;
  call.threads.run(call.args.layout.kv_heads, [&](int head, int) { sparse.slots.compact(head, sparse.filled, sparse.budget, position - sparse.recent + 1); });
  sparse.filled = sparse.budget;
}

void SparseAttention::choose_pages(const SparseAttentionCall& call, Chosen& chosen, int row, Wave& wave) {
  const AttentionArgs& args = call.args;
  const KvLayout& layout = args.layout;
  const AttentionSequence& sequence = args.sequences[chosen.selection->sequence];
  const PageBounds bounds(layout, args.pool, *chosen.selection, args.layer, args.layers);
  const int position = position_of(row), last = position / kPageTokens;
  const int group = args.heads / layout.kv_heads;
  const int most = std::min(chosen.selection->budget, last + 1);
  chosen.pages.resize(static_cast<size_t>(layout.kv_heads) * most);
  std::vector<float> query(static_cast<size_t>(args.heads) * layout.head_dim);
  read_query_row(args.isa, layout.type, args.heads, layout.head_dim, call.query, row, query.data());
  const auto page_of = [&](int block) {
    return args.page_table[static_cast<size_t>(sequence.blocks[block - sequence.first_block]) * args.layers + args.layer];
  };
  call.threads.run(layout.kv_heads, [&](int head, int) {
    for (int block = chosen.bounded; block <= last; block++)
      bounds.write(head, block, args.page(sequence, block), std::min(kPageTokens, position + 1 - block * kPageTokens));
    const float* q = query.data() + static_cast<ptrdiff_t>(head) * group * layout.head_dim;
    const int count = bounds.choose(head, q, group, last, args.scale, chosen.pages.data() + static_cast<ptrdiff_t>(head) * most, page_of);
    chosen.starts[static_cast<size_t>(head)] = (count - 1) * kPageTokens + position % kPageTokens;
  });
  chosen.bounded = last;
  AttentionSequence of_row = {row, 1, *std::max_element(chosen.starts.begin(), chosen.starts.end()), nullptr, 0};
  of_row.pages = chosen.pages.data();
  of_row.page_stride = most;
  of_row.starts = chosen.starts.data();
  wave.rows.push_back(of_row);
}

void SparseAttention::select(const SparseAttentionCall& call) {
  const AttentionArgs& args = call.args;
  const KvLayout& layout = args.layout;
  std::vector<const KvSelectionView*> selections;
  std::vector<KeyScoring> scorings;
  size_t values = 0;
  for (const KvSelectionView& selection : step_->selections) {
    if (selection.group != call.group || unanswered_[selection.sequence] != 0) continue;
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
