// A remote attention query: rows of one sequence in one layer, and the partials that return. Both sides share its
// ownership.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "attention/pieces.hpp"
#include "base/event_count.hpp"

namespace kvasir {

/**
 * Lent blocks of one loan, from absolute block `first_block` on. Their ids follow those of earlier keys in
 * `RemoteQuery::blocks`.
 */
struct QueryKeys {
  int loan;
  int first_block;
  int blocks;
};

/** An aligned subtree of key ranges that the server holds completely. The server returns one partial for it. */
struct QueryNode {
  int first;
  int ranges;
};

struct RemoteQuery;

/** Is notified of ended queries in the server's thread; must return quickly. */
class QueryObserver {
 public:
  virtual ~QueryObserver() = default;
  virtual void query_ended(const RemoteQuery& query) = 0;
};

struct RemoteQuery {
  enum class State : int { idle, open, answered, refused };

  // The request: written before the query is posted.
  Isa isa = Isa::portable;
  KvLayout layout = {};
  int heads = 0;
  int layer = 0;  // within its layer group
  float scale = 1;
  float softcap = 0;
  std::vector<float> slopes;   // (heads), or empty
  int rows = 0;
  int start = 0;               // position of the first row
  std::vector<uint8_t> query;  // (rows, heads, head_dim), in the form of a query buffer
  std::vector<QueryKeys> keys;
  std::vector<int32_t> blocks;
  std::vector<QueryNode> nodes;  // none: the answer is the pages of `blocks` in this layer, in their order
  std::shared_ptr<EventCount> answered;  // notified when the query ends, unless there is an observer
  std::shared_ptr<QueryObserver> observer;

  /** Set when the client no longer waits for the answer. */
  std::atomic<bool> dropped{false};
  std::atomic<State> state{State::idle};

  /** The partial of a node: o (rows, heads, head_dim), max and sum (rows, heads). */
  Partial partial(size_t node) const {
    const float* o = reinterpret_cast<const float*>(answer) + node * partial_floats();
    const float* max = o + static_cast<size_t>(rows) * heads * layout.head_dim;
    return {o, max, max + static_cast<size_t>(rows) * heads};
  }
  size_t partial_floats() const { return static_cast<size_t>(rows) * heads * (layout.head_dim + 2); }
  size_t bytes_out() const { return query.size(); }
  size_t bytes_back() const { return is_for_pages() ? layout.page_bytes() * blocks.size() : sizeof(float) * partial_floats() * nodes.size(); }
  bool is_for_pages() const { return nodes.empty(); }

  int ranges() const {
    int all = 0;
    for (const QueryNode& node : nodes) all += node.ranges;
    return all;
  }

  bool is_open() const { return state.load(std::memory_order_acquire) == State::open; }
  void open() {
    dropped.store(false, std::memory_order_relaxed);
    answer = answer_memory_.at_least(bytes_back());
    state.store(State::open, std::memory_order_release);
  }
  /** Called by the server, which does not touch the query after it. */
  void end(State how) {
    const std::shared_ptr<EventCount> event = answered;
    const std::shared_ptr<QueryObserver> observes = observer;
    state.store(how, std::memory_order_release);
    if (observes != nullptr) observes->query_ended(*this);
    else event->notify();
  }

  /** Partials of the nodes, in order, or pages; `bytes_back()` bytes that the server writes until the query ends. */
  uint8_t* answer = nullptr;

 private:
  GrowingMemory answer_memory_;
};

}  // namespace kvasir
