// The plan of a step's remote keys: which rows query which endpoint for which subtrees of ranges. All layers of a group
// share it.
#include "remote/remote_attention.hpp"

#include "attention/plan.hpp"

namespace kvasir {
namespace {

constexpr size_t kWaveBytes = size_t{64} << 20;  // of partials held at the same time
constexpr int kSliceWork = 512;                  // rows x ranges of a query: some tens of milliseconds of one core

}  // namespace

void RemoteAttention::begin(const StepView& step, const std::vector<std::vector<AttentionSequence>>& sequences, uint8_t* failed_sequences) {
  groups_.clear();
  failed_sequences_ = failed_sequences;
  aborted_ = false;
  if (step.remote.empty()) return;
  step_ = &step;
  sequences_ = &sequences;
  groups_.resize(sequences.size());
  for (const RemoteKeysView& keys : step.remote) groups_[keys.group].remote = true;
}

std::vector<RemoteAttention::Extent> RemoteAttention::extents_of(int sequence, int group) const {
  std::vector<Extent> extents;
  for (size_t i = 0; i < step_->remote.size(); i++) {
    const RemoteKeysView& keys = step_->remote[i];
    if (keys.sequence != sequence || keys.group != group) continue;
    const int first = keys.first_block / kRangePages, end = first + static_cast<int>(keys.blocks.size) / kRangePages;
    if (!extents.empty() && extents.back().end == first && extents.back().endpoint == keys.endpoint) {
      extents.back().end = end;
      extents.back().keys_end = i + 1;
    } else {
      extents.push_back({keys.endpoint, first, end, i, i + 1});
    }
  }
  return extents;
}

void RemoteAttention::plan(Group& group, const RemoteAttentionCall& call) {
  group.heads = call.args.heads;
  group.roots.clear();
  group.requests.clear();
  group.local.clear();
  const std::vector<AttentionSequence>& sequences = (*sequences_)[call.group];
  const int tile_tokens = tile_tokens_max(group.heads / call.args.layout.kv_heads);
  std::vector<std::pair<int, std::vector<Extent>>> remote_sequences;
  long long local = 0;
  for (int s = 0; s < step_->sequences(); s++) {
    std::vector<Extent> extents = extents_of(s, call.group);
    if (extents.empty()) {
      group.local.push_back(s);
      continue;
    }
    long long ranges = (sequences[s].start + sequences[s].rows - 1) / kRangeTokens + 1;
    for (const Extent& extent : extents) ranges -= extent.end - extent.first;
    local += ranges * ((sequences[s].rows + tile_tokens - 1) / tile_tokens) * call.args.layout.kv_heads;
    remote_sequences.emplace_back(s, std::move(extents));
  }
  const int most = subtree_ranges(local, call.backend.pool.size());
  for (const auto& [sequence, extents] : remote_sequences) plan_sequence(group, call, sequence, extents, most);
  plan_waves(group, call);
}

void RemoteAttention::plan_sequence(Group& group, const RemoteAttentionCall& call, int sequence, const std::vector<Extent>& extents, int most) {
  const AttentionSequence& rows = (*sequences_)[call.group][sequence];
  const int tile_tokens = tile_tokens_max(group.heads / call.args.layout.kv_heads);
  int remote = 0;
  for (const Extent& extent : extents) remote += extent.end - extent.first;
  const int slice = std::max(1, kSliceWork / remote / tile_tokens) * tile_tokens;
  for (int token = 0; token < rows.rows; token += slice) {
    group.roots.push_back({sequence, token, std::min(slice, rows.rows - token), {}});
    std::vector<AttentionPiece>& pieces = group.roots.back().pieces;
    const auto add_local = [&](int first, int ranges) { pieces.push_back({first, ranges, nullptr, false}); };
    int at = 0;
    for (const Extent& extent : extents) {
      add_subtrees(at, extent.first, most, add_local);
      const int first_piece = static_cast<int>(pieces.size());
      add_subtrees(extent.first, extent.end, kRangesMost, [&](int first, int ranges) { pieces.push_back({first, ranges, nullptr, true}); });
      add_request(group, extent, first_piece);
      at = extent.end;
    }
    add_subtrees(at, (rows.start + token + group.roots.back().tokens - 1) / kRangeTokens + 1, most, add_local);
  }
}

/** Adds to the last root a request for its pieces from `first_piece` on, which cover the extent. */
void RemoteAttention::add_request(Group& group, const Extent& extent, int first_piece) {
  const int root = static_cast<int>(group.roots.size()) - 1;
  const std::vector<AttentionPiece>& pieces = group.roots.back().pieces;
  const auto same = [&](const Request& other) { return other.root == root && other.endpoint == extent.endpoint; };
  auto found = std::find_if(group.requests.begin(), group.requests.end(), same);
  if (found == group.requests.end()) {
    group.requests.push_back({root, extent.endpoint, {}, {}, {}, {}, nullptr, {}});
    found = std::prev(group.requests.end());
  }
  for (size_t i = extent.keys; i < extent.keys_end; i++) {
    const RemoteKeysView& keys = step_->remote[i];
    found->keys.push_back({keys.loan, keys.first_block, static_cast<int>(keys.blocks.size)});
    found->blocks.insert(found->blocks.end(), keys.blocks.data, keys.blocks.data + keys.blocks.size);
  }
  for (int piece = first_piece; piece < static_cast<int>(pieces.size()); piece++) {
    found->nodes.push_back({pieces[piece].first, pieces[piece].ranges});
    found->pieces.push_back(piece);
  }
}

void RemoteAttention::plan_waves(Group& group, const RemoteAttentionCall& call) {
  group.waves.clear();
  size_t bytes = 0, request = 0;
  for (size_t root = 0; root < group.roots.size(); root++) {
    const size_t rows = static_cast<size_t>(group.roots[root].tokens) * group.heads;
    const size_t more = group.roots[root].pieces.size() * rows * (call.args.layout.head_dim + 2) * sizeof(float);
    if (group.waves.empty() || bytes + more > kWaveBytes) {
      group.waves.push_back({root, root, request, request});
      bytes = 0;
    }
    bytes += more;
    while (request < group.requests.size() && group.requests[request].root == static_cast<int>(root)) request++;
    group.waves.back().root_end = root + 1;
    group.waves.back().request_end = request;
  }
}

}  // namespace kvasir
