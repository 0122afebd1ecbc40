// Merging of partials. Compiled once, without fused multiply-adds: every instruction set merges with the same bits.
#include "attention_merge.hpp"

#include <cmath>
#include <vector>

#include "attention.hpp"
#include "float_bits.hpp"

namespace kvasir {
namespace {

constexpr float kRounds = 12582912.0f;  // added to it, a float below 2^22 has no bits left for a fraction

/** exp(x), x <= 0, relative error under 2e-7; 0 below -87. ln 2 in two parts, the first with bits to spare, so that n ln 2 is exact. */
float exp_negative(float x) {
  if (x < -87.0f) return 0.0f;
  if (x != x) return x;
  float n = (x * 1.44269504f + kRounds) - kRounds;
  float f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = f * 0.00138436072f + 0.00837419555f;
  p = p * f + 0.0416680053f;
  p = p * f + 0.166664302f;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  return p * bits_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

bool is_empty(const PartialRows& part, int row) { return part.sum[row] == 0.0f && part.max[row] == -INFINITY; }

/** left = keep left + add right. One of the factors is 1, and a product by it exact: it is left out. */
void merge_row(float* __restrict left, const float* __restrict right, int columns, float keep, float add) {
  if (keep == 1.0f) {
    for (int i = 0; i < columns; i++) left[i] = left[i] + right[i] * add;
  } else {
    for (int i = 0; i < columns; i++) left[i] = left[i] * keep + right[i];
  }
}

}  // namespace

void merge_rows(const PartialRows& left, const PartialRows& right, int rows, int columns, size_t left_stride, size_t right_stride) {
  for (int row = 0; row < rows; row++) {
    float* o = left.o + left_stride * row;
    const float* other = right.o + right_stride * row;
    if (is_empty(right, row)) continue;
    if (is_empty(left, row)) {
      std::memcpy(o, other, sizeof(float) * columns);
      left.max[row] = right.max[row];
      left.sum[row] = right.sum[row];
      continue;
    }
    float max = left.max[row] > right.max[row] ? left.max[row] : right.max[row];
    float lower = exp_negative(left.max[row] > right.max[row] ? right.max[row] - max : left.max[row] - max);
    float keep = left.max[row] > right.max[row] ? 1.0f : lower;
    float add = left.max[row] > right.max[row] ? lower : 1.0f;
    merge_row(o, other, columns, keep, add);
    left.sum[row] = left.sum[row] * keep + right.sum[row] * add;
    left.max[row] = max;
  }
}

namespace {

/** Partials of one token (heads, head_dim) on the stack of the binary counter. */
class MergeStack {
 public:
  MergeStack(int heads, int head_dim, int levels) : heads_(heads), head_dim_(head_dim), values_(static_cast<size_t>(levels) * heads * (head_dim + 2)) {}

  void push(const Partial& part, int token) {
    PartialRows slot = at(depth_++);
    size_t row = static_cast<size_t>(token) * heads_;
    std::memcpy(slot.o, part.o + row * head_dim_, sizeof(float) * heads_ * head_dim_);
    std::memcpy(slot.max, part.max + row, sizeof(float) * heads_);
    std::memcpy(slot.sum, part.sum + row, sizeof(float) * heads_);
  }
  void merge_top() {
    merge_rows(at(depth_ - 2), at(depth_ - 1), heads_, head_dim_, head_dim_, head_dim_);
    depth_--;
  }
  int depth() const { return depth_; }
  PartialRows at(int level) {
    float* o = values_.data() + static_cast<size_t>(level) * heads_ * (head_dim_ + 2);
    float* max = o + static_cast<size_t>(heads_) * head_dim_;
    return {o, max, max + heads_};
  }
  void clear() { depth_ = 0; }

 private:
  int heads_;
  int head_dim_;
  int depth_ = 0;
  std::vector<float> values_;
};

}  // namespace

void merge_partials(ThreadPool& pool, const Partial* parts, int count, int tokens, int heads, int head_dim, float* out) {
  int levels = 2;  // a part just pushed, beside one subtree for each bit of the count
  for (int rest = count; rest > 1; rest /= 2) levels++;
  std::vector<MergeStack> stacks(pool.size(), MergeStack(heads, head_dim, levels));
  auto body = [&](int token, int thread) {
    MergeStack& stack = stacks[thread];
    stack.clear();
    for (int part = 0; part < count; part++) {
      stack.push(parts[part], token);
      for (int merges = merges_after(part); merges > 0; merges--) stack.merge_top();
    }
    while (stack.depth() > 1) stack.merge_top();
    PartialRows whole = stack.at(0);
    float* row = out + static_cast<size_t>(token) * heads * head_dim;
    for (int i = 0; i < heads * head_dim; i++) {
      float sum = whole.sum[i / head_dim];
      row[i] = sum == 0.0f ? 0.0f : whole.o[i] / sum;  // a head without keys
    }
  };
  pool.run(tokens, body);
}

}  // namespace kvasir
