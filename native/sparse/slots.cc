// The choice of kept tokens, and their slots. Ties are broken by position, so that every choice is unique.
#include "sparse/slots.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace kvasir {
namespace {

float pool(const std::vector<float>& scores, int at, int end, Pooling kind, int width) {
  const int first = std::max(0, at - width / 2), last = std::min(end - 1, at + width / 2);
  float result = 0.0f;
  for (int i = first; i <= last; i++) result = kind == Pooling::max ? std::max(result, scores[i]) : result + scores[i];
  return kind == Pooling::max ? result : result / static_cast<float>(width);
}

/** The lowest score of positions below `before`. */
float lowest_score(const LayerSlots::States& states, int count, int before) {
  constexpr int kLanes = 4;  // wider vectors would be compared value by value
  typedef float Scores __attribute__((vector_size(4 * kLanes)));
  typedef int32_t Positions __attribute__((vector_size(4 * kLanes)));
  const Scores none = Scores{} + INFINITY;
  Scores lowest = none;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Scores scores;
    Positions positions;
    std::memcpy(&scores, states.scores + i, sizeof scores);
    std::memcpy(&positions, states.positions + i, sizeof positions);
    const Positions lower = (positions < before) & (scores < lowest);
    lowest = (Scores)((lower & (Positions)scores) | (~lower & (Positions)lowest));
  }
  float result = INFINITY;
  for (int lane = 0; lane < kLanes; lane++) result = std::min(result, lowest[lane]);
  for (; i < count; i++)
    if (states.positions[i] < before) result = std::min(result, states.scores[i]);
  return result;
}

}  // namespace

void keep_tokens(const float* scores, int tokens, int budget, const KvSelectionView& selection, KeptTokens& kept) {
  const int before = tokens - std::min({selection.recent, budget, tokens});
  std::vector<float> known(scores, scores + tokens);
  for (float& score : known) score = score >= 0 ? score : 0.0f;
  std::vector<float> pooled = known;
  if (selection.pooling_width > 1)
    for (int i = 0; i < before; i++) pooled[i] = pool(known, i, before, selection.pooling, selection.pooling_width);
  std::vector<int32_t>& chosen = kept.positions;
  chosen.resize(static_cast<size_t>(before));
  std::iota(chosen.begin(), chosen.end(), 0);
  const int wanted = std::min(tokens, budget) - (tokens - before);
  if (wanted < before) {
    const auto higher = [&](int32_t a, int32_t b) { return pooled[a] > pooled[b] || (pooled[a] == pooled[b] && a < b); };
    std::nth_element(chosen.begin(), chosen.begin() + wanted, chosen.end(), higher);
    chosen.resize(static_cast<size_t>(wanted));
    std::sort(chosen.begin(), chosen.end());
  }
  for (int position = before; position < tokens; position++) chosen.push_back(position);
  kept.scores.clear();
  for (const int32_t position : chosen) kept.scores.push_back(pooled[position]);
}

void LayerSlots::write(int head, int slot, int position, const float* k, const float* v) const {
  // The instruction set does not change the layout.
  write_kv(Isa::portable, {layout_.type, 1, layout_.head_dim}, slot_share(head, slot), slot % kPageTokens, k, v);
  set_state(head, slot, position, 0.0f);
}

int LayerSlots::lowest(int head, int filled, int before) const {
  float score = INFINITY;
  for (int slot = 0; slot < filled;) {
    const States next = states(head, slot);
    const int count = std::min(next.count, filled - slot);
    score = std::min(score, lowest_score(next, count, before));
    slot += count;
  }
  int lowest = 0;
  int32_t position = -1;
  for (int slot = 0; slot < filled;) {
    const States next = states(head, slot);
    const int count = std::min(next.count, filled - slot);
    for (int i = 0; i < count; i++) {
      if (!(next.scores[i] <= score) || next.positions[i] >= before || next.positions[i] <= position) continue;
      lowest = slot + i;
      position = next.positions[i];
    }
    slot += count;
  }
  return lowest;
}

void LayerSlots::compact(int head, int filled, int budget, int recent_from) const {
  struct Token {
    int slot;
    int32_t position;
    float score;
  };
  std::vector<Token> tokens;
  for (int slot = 0; slot < filled; slot++) {
    const States state = states(head, slot);
    tokens.push_back({slot, state.positions[0], state.scores[0]});
  }
  const auto higher = [&](const Token& a, const Token& b) {
    const bool a_recent = a.position >= recent_from, b_recent = b.position >= recent_from;
    if (a_recent != b_recent) return a_recent;
    return a.score > b.score || (a.score == b.score && a.position < b.position);
  };
  std::nth_element(tokens.begin(), tokens.begin() + budget, tokens.end(), higher);
  tokens.resize(static_cast<size_t>(budget));
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) { return a.slot < b.slot; });
  for (int slot = 0; slot < budget; slot++) {
    const Token& token = tokens[slot];
    if (token.slot != slot) copy(head, slot, pool_ + layout_.page_bytes() * static_cast<size_t>(pages_[token.slot / kPageTokens]), token.slot % kPageTokens);
    set_state(head, slot, token.position, token.score);
  }
}

}  // namespace kvasir
