// Merging of complete partials, token by token.
#include <vector>

#include "attention/attention.hpp"
#include "attention/merge_rows.hpp"

namespace kvasir {
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
  int levels = 2;  // the pushed part, and one subtree for each bit of the count
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
