// The bound of a page for a query is the sum over dimensions of max(q min, q max): the positive part of q times the
// maxima, and the negative part times the minima.
#include "sparse/page_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/stream.hpp"

namespace kvasir {
namespace {

constexpr int kPagesAtOnce = 16;  // pages of bounds, for 16,384 tokens

}  // namespace

void PageBounds::write(int head, int block, const uint8_t* page, int tokens) const {
  write_key_bounds(layout_.type, layout_.head_dim, page + share_bytes_ * head, tokens, share(head, block), block % kPageTokens);
}

std::vector<float> PageBounds::bounds_of(Isa isa, int head, const float* q, int group, int blocks) const {
  const AttentionKernel& kernel = find_attention_kernel(isa, layout_);
  const int values = group * layout_.head_dim;
  std::vector<float> part(static_cast<size_t>(values));
  std::vector<uint8_t> rounded(query_bytes(isa, layout_.type, group, layout_.head_dim, 1));
  std::vector<float> loaded[2];  // positive and negative parts, in the kernel's form
  for (int sign = 0; sign < 2; sign++) {
    for (int i = 0; i < values; i++) part[i] = (q[i] < 0) == (sign == 1) ? q[i] : 0.0f;
    write_query_row(isa, layout_.type, group, layout_.head_dim, rounded.data(), 0, part.data());
    loaded[sign].resize(static_cast<size_t>(values));
    kernel.load_query(rounded.data(), values, loaded[sign].data());
  }
  std::vector<float> highest(static_cast<size_t>(blocks));
  std::vector<float> bounds(static_cast<size_t>(group) * kPagesAtOnce * kPageTokens);
  for (int first = 0; first < blocks; first += kPagesAtOnce * kPageTokens) {
    const int count = std::min(blocks - first, kPagesAtOnce * kPageTokens);
    const uint8_t* pages[kPagesAtOnce];
    const int page_count = (count - 1) / kPageTokens + 1;
    for (int i = 0; i < page_count; i++) pages[i] = share(head, first + i * kPageTokens);
    kernel.bound_pages({layout_.head_dim, group, loaded[0].data(), loaded[1].data(), pages, page_count, bounds.data(), kPagesAtOnce * kPageTokens});
    for (int i = 0; i < count; i++) {
      float bound = -INFINITY;  // a NaN counts as the lowest bound
      for (int g = 0; g < group; g++) bound = std::max(bound, bounds[static_cast<size_t>(g) * kPagesAtOnce * kPageTokens + i]);
      highest[static_cast<size_t>(first + i)] = bound;
    }
  }
  return highest;
}

std::vector<int32_t> PageBounds::choose(Isa isa, int head, const float* q, int group, int last, float scale) const {
  const int blocks = last + 1;
  const std::vector<float> bounds = bounds_of(isa, head, q + static_cast<ptrdiff_t>(head) * group * layout_.head_dim, group, blocks);
  std::vector<int32_t> ranked(static_cast<size_t>(blocks));
  std::iota(ranked.begin(), ranked.end(), 0);
  const auto higher = [&](int32_t a, int32_t b) { return bounds[a] > bounds[b] || (bounds[a] == bounds[b] && a < b); };
  const int most = std::min(blocks, selection_->budget);
  std::partial_sort(ranked.begin(), ranked.begin() + most, ranked.end(), higher);
  const auto weight = [&](int32_t block) { return std::exp(scale * (bounds[block] - bounds[ranked[0]])); };
  float wanted = INFINITY;
  if (selection_->top_p < 1) {
    float total = 0;
    for (int block = 0; block < blocks; block++) total += weight(block);
    wanted = total * selection_->top_p;
  }
  std::vector<int32_t> chosen = {0};
  if (last > 0) chosen.push_back(last);
  float mass = 0;
  for (int i = 0; i < most && mass < wanted; i++) {
    const int32_t block = ranked[i];
    const bool given = block == 0 || block == last;
    if (!given && static_cast<int>(chosen.size()) >= most) break;
    if (!given) chosen.push_back(block);
    mass += weight(block);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace kvasir
