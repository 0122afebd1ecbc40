// A query to a guest room: rows of one sequence in one layer, and the partials that come back. It belongs to both sides, so that either may go.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "attention/attention.hpp"
#include "kv/step_progress.hpp"

namespace kvasir {

/** Blocks from absolute block `first_block` on, as one loan has them; their ids follow those of the keys before in `GuestQuery::blocks`. */
struct GuestKeys {
  int loan;
  int first_block;
  int blocks;
};

/** An aligned subtree of ranges that the room holds whole: one partial comes back for it. */
struct GuestNode {
  int first;
  int ranges;
};

struct GuestQuery;

/** Hears of queries that are over, in the room's thread: should be soon done with it. */
class GuestEar {
 public:
  virtual ~GuestEar() = default;
  virtual void hear(const GuestQuery& query) = 0;
};

struct GuestQuery {
  enum class State : int { idle, open, answered, refused };

  // Asked: written before it is posted.
  Isa isa = Isa::portable;
  KvLayout layout = {};
  int heads = 0;
  int layer = 0;  // of the group
  float scale = 1;
  float softcap = 0;
  std::vector<float> slopes;   // (heads), or none
  int rows = 0;
  int start = 0;               // position of the first row
  std::vector<uint8_t> query;  // (rows, heads, head_dim), as in a query buffer
  std::vector<GuestKeys> keys;
  std::vector<int32_t> blocks;
  std::vector<GuestNode> nodes;
  std::shared_ptr<Bell> answered;  // rung when it is over, unless there is an ear
  std::shared_ptr<GuestEar> ear;

  /** Whoever asked does not wait any more. */
  std::atomic<bool> dropped{false};
  std::atomic<State> state{State::idle};

  /** Where the partial of a node is: o (rows, heads, head_dim), max and sum (rows, heads). */
  Partial partial(size_t node) const {
    const float* o = partials.data() + node * partial_floats();
    const float* max = o + static_cast<size_t>(rows) * heads * layout.head_dim;
    return {o, max, max + static_cast<size_t>(rows) * heads};
  }
  size_t partial_floats() const { return static_cast<size_t>(rows) * heads * (layout.head_dim + 2); }
  size_t bytes_out() const { return query.size(); }
  size_t bytes_back() const { return sizeof(float) * partial_floats() * nodes.size(); }

  int ranges() const {
    int all = 0;
    for (const GuestNode& node : nodes) all += node.ranges;
    return all;
  }

  bool is_open() const { return state.load(std::memory_order_acquire) == State::open; }
  void open() {
    dropped.store(false, std::memory_order_relaxed);
    partials.resize(partial_floats() * nodes.size());
    state.store(State::open, std::memory_order_release);
  }
  /** Of the room: behind this it touches nothing of the query. */
  void end(State how) {
    const std::shared_ptr<Bell> bell = answered;
    const std::shared_ptr<GuestEar> listens = ear;
    state.store(how, std::memory_order_release);
    if (listens != nullptr) listens->hear(*this);
    else bell->ring();
  }

  std::vector<float> partials;  // of nodes, one after another: the room's until the query is over
};

}  // namespace kvasir
