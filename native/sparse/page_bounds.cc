// The bound of a page for a query is the sum over dimensions of max(q min, q max). Eight lanes hold partial sums.
#include "sparse/page_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "simd/float_bits.hpp"

namespace kvasir {
namespace {

constexpr int kLanes = 8;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));

/** Sum of max(q min, q max) over `dims` dimensions, a multiple of kLanes. */
float bound_of(const float* q, const float* min, const float* max, int dims) {
  Lanes sums{};
  for (int d = 0; d < dims; d += kLanes) {
    Lanes query, low, high;
    std::memcpy(&query, q + d, sizeof query);
    std::memcpy(&low, min + d, sizeof low);
    std::memcpy(&high, max + d, sizeof high);
    const Lanes a = query * low, b = query * high;
    sums += a > b ? a : b;
  }
  float sum = 0;
  for (int i = 0; i < kLanes; i++) sum += sums[i];
  return sum;
}

void widen_entry(const KvLayout& layout, const uint8_t* entry, float* out) {
  if (layout.type == KvType::f32) {
    std::memcpy(out, entry, sizeof(float) * layout.head_dim);
    return;
  }
  for (int d = 0; d < layout.head_dim; d++) {
    uint16_t bits;
    std::memcpy(&bits, entry + 2 * d, 2);
    out[d] = bf16_to_float(bits);
  }
}

void store_entry(const KvLayout& layout, const float* values, uint8_t* entry) {
  if (layout.type == KvType::f32) {
    std::memcpy(entry, values, sizeof(float) * layout.head_dim);
    return;
  }
  for (int d = 0; d < layout.head_dim; d++) {
    const uint16_t bits = float_to_bf16(values[d]);  // exact: the values are keys
    std::memcpy(entry + 2 * d, &bits, 2);
  }
}

size_t half_entry(const KvLayout& layout) { return static_cast<size_t>(layout.head_dim) * (layout.type == KvType::bf16 ? 2 : 4); }

}  // namespace

void PageBounds::write(int head, int block, const uint8_t* page, int tokens) const {
  std::vector<float> bounds(static_cast<size_t>(2 * layout_.head_dim));
  float* min = bounds.data();
  float* max = min + layout_.head_dim;
  key_bounds(layout_.type, layout_.head_dim, page + share_bytes_ * head, tokens, min, max);
  uint8_t* to = entry(head, block);
  store_entry(layout_, min, to);
  store_entry(layout_, max, to + half_entry(layout_));
}

std::vector<int32_t> PageBounds::chosen_blocks(int head, const float* q, int group, int last, float scale) const {
  const int blocks = last + 1, dims = (layout_.head_dim + kLanes - 1) / kLanes * kLanes;
  std::vector<float> queries(static_cast<size_t>(group) * dims), min(static_cast<size_t>(dims)), max(static_cast<size_t>(dims));
  for (int g = 0; g < group; g++) std::copy_n(q + static_cast<ptrdiff_t>(g) * layout_.head_dim, layout_.head_dim, queries.data() + static_cast<ptrdiff_t>(g) * dims);
  std::vector<float> bounds(static_cast<size_t>(blocks));
  for (int block = 0; block < blocks; block++) {
    const uint8_t* from = entry(head, block);
    widen_entry(layout_, from, min.data());
    widen_entry(layout_, from + half_entry(layout_), max.data());
    float bound = -INFINITY;
    for (int g = 0; g < group; g++) bound = std::max(bound, bound_of(queries.data() + static_cast<ptrdiff_t>(g) * dims, min.data(), max.data(), dims));
    bounds[block] = bound;
  }
  std::vector<int32_t> ranked(static_cast<size_t>(blocks));
  std::iota(ranked.begin(), ranked.end(), 0);
  // A NaN counts as the lowest bound.
  const auto rank = [&](int32_t block) { return bounds[block] == bounds[block] ? bounds[block] : -INFINITY; };
  const auto higher = [&](int32_t a, int32_t b) { return rank(a) > rank(b) || (rank(a) == rank(b) && a < b); };
  const int most = std::min(blocks, selection_->budget);
  std::partial_sort(ranked.begin(), ranked.begin() + most, ranked.end(), higher);
  float wanted = INFINITY;
  const float highest = rank(ranked[0]);
  const auto weight = [&](int32_t block) { return std::exp(scale * (rank(block) - highest)); };
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
