// The plan of a step's remote keys: which rows ask which room for which subtrees of ranges. It serves all layers.
#include "remote/remote_attention.hpp"

#include "attention/plan.hpp"

namespace kvasir {
namespace {

constexpr size_t kWaveBytes = size_t{64} << 20;  // of partials kept at once
constexpr int kSliceWork = 512;                  // row x range of a query: some tens of milliseconds of one core

}  // namespace

void RemoteAttention::begin(const StepView& step, const std::vector<std::vector<AttentionSequence>>& sequences, uint8_t* unanswered) {
  groups_.clear();
  unanswered_ = unanswered;
  aborted_ = false;
  if (step.remote.empty()) return;
  step_ = &step;
  sequences_ = &sequences;
  groups_.resize(sequences.size());
  for (const RemoteKeysView& keys : step.remote) groups_[keys.group].remote = true;
}

std::vector<RemoteAttention::Stretch> RemoteAttention::stretches_of(int sequence, int group) const {
  std::vector<Stretch> stretches;
  for (size_t i = 0; i < step_->remote.size(); i++) {
    const RemoteKeysView& keys = step_->remote[i];
    if (keys.sequence != sequence || keys.group != group) continue;
    const int first = keys.first_block / kRangePages, end = first + static_cast<int>(keys.blocks.size) / kRangePages;
    if (!stretches.empty() && stretches.back().end == first && stretches.back().room == keys.room) {
      stretches.back().end = end;
      stretches.back().keys_end = i + 1;
    } else {
      stretches.push_back({keys.room, first, end, i, i + 1});
    }
  }
  return stretches;
}

void RemoteAttention::plan(Group& group, const RemoteCall& call) {
  group.heads = call.args.heads;
  group.roots.clear();
  group.asks.clear();
  group.plain.clear();
  const std::vector<AttentionSequence>& sequences = (*sequences_)[call.group];
  const int tile_tokens = tile_tokens_max(group.heads / call.args.layout.kv_heads);
  std::vector<std::pair<int, std::vector<Stretch>>> away;
  long long local = 0;
  for (int s = 0; s < step_->sequences(); s++) {
    std::vector<Stretch> stretches = stretches_of(s, call.group);
    if (stretches.empty()) {
      group.plain.push_back(s);
      continue;
    }
    long long ranges = (sequences[s].start + sequences[s].rows - 1) / kRangeTokens + 1;
    for (const Stretch& stretch : stretches) ranges -= stretch.end - stretch.first;
    local += ranges * ((sequences[s].rows + tile_tokens - 1) / tile_tokens) * call.args.layout.kv_heads;
    away.emplace_back(s, std::move(stretches));
  }
  const int most = subtree_ranges(local, call.team.pool.size());
  for (const auto& [sequence, stretches] : away) plan_sequence(group, call, sequence, stretches, most);
  plan_waves(group, call);
}

void RemoteAttention::plan_sequence(Group& group, const RemoteCall& call, int sequence, const std::vector<Stretch>& stretches, int most) {
  const AttentionSequence& rows = (*sequences_)[call.group][sequence];
  const int tile_tokens = tile_tokens_max(group.heads / call.args.layout.kv_heads);
  int remote = 0;
  for (const Stretch& stretch : stretches) remote += stretch.end - stretch.first;
  const int slice = std::max(1, kSliceWork / remote / tile_tokens) * tile_tokens;
  for (int token = 0; token < rows.rows; token += slice) {
    group.roots.push_back({sequence, token, std::min(slice, rows.rows - token), {}});
    std::vector<AttentionPiece>& pieces = group.roots.back().pieces;
    const auto at_home = [&](int first, int ranges) { pieces.push_back({first, ranges, nullptr, false}); };
    int at = 0;
    for (const Stretch& stretch : stretches) {
      add_subtrees(at, stretch.first, most, at_home);
      const int first_piece = static_cast<int>(pieces.size());
      add_subtrees(stretch.first, stretch.end, kRangesMost, [&](int first, int ranges) { pieces.push_back({first, ranges, nullptr, true}); });
      ask(group, stretch, first_piece);
      at = stretch.end;
    }
    add_subtrees(at, (rows.start + token + group.roots.back().tokens - 1) / kRangeTokens + 1, most, at_home);
  }
}

/** The last root asks for the pieces from `first_piece` on, which are those of the stretch. */
void RemoteAttention::ask(Group& group, const Stretch& stretch, int first_piece) {
  const int root = static_cast<int>(group.roots.size()) - 1;
  const std::vector<AttentionPiece>& pieces = group.roots.back().pieces;
  const auto same = [&](const Ask& other) { return other.root == root && other.room == stretch.room; };
  auto found = std::find_if(group.asks.begin(), group.asks.end(), same);
  if (found == group.asks.end()) {
    group.asks.push_back({root, stretch.room, {}, {}, {}, {}, nullptr, {}});
    found = std::prev(group.asks.end());
  }
  for (size_t i = stretch.keys; i < stretch.keys_end; i++) {
    const RemoteKeysView& keys = step_->remote[i];
    found->keys.push_back({keys.loan, keys.first_block, static_cast<int>(keys.blocks.size)});
    found->blocks.insert(found->blocks.end(), keys.blocks.data, keys.blocks.data + keys.blocks.size);
  }
  for (int piece = first_piece; piece < static_cast<int>(pieces.size()); piece++) {
    found->nodes.push_back({pieces[piece].first, pieces[piece].ranges});
    found->pieces.push_back(piece);
  }
}

void RemoteAttention::plan_waves(Group& group, const RemoteCall& call) {
  group.waves.clear();
  size_t bytes = 0, ask = 0;
  for (size_t root = 0; root < group.roots.size(); root++) {
    const size_t rows = static_cast<size_t>(group.roots[root].tokens) * group.heads;
    const size_t more = group.roots[root].pieces.size() * rows * (call.args.layout.head_dim + 2) * sizeof(float);
    if (group.waves.empty() || bytes + more > kWaveBytes) {
      group.waves.push_back({root, root, ask, ask});
      bytes = 0;
    }
    bytes += more;
    while (ask < group.asks.size() && group.asks[ask].root == static_cast<int>(root)) ask++;
    group.waves.back().root_end = root + 1;
    group.waves.back().ask_end = ask;
  }
}

}  // namespace kvasir
