// Attention of a step with some keys at creditors: it posts queries, computes the local keys meanwhile, and merges the
// partials in the tree.
#pragma once
#include <chrono>
#include <memory>
#include <vector>

#include "attention/pieces.hpp"
#include "base/backend.hpp"
#include "ops/step.hpp"
#include "remote/endpoint.hpp"

namespace kvasir {

/** One attention op of a step. */
struct RemoteAttentionCall {
  const AttentionArgs& args;  // of all sequences of the step
  const void* query;
  StreamOutput output;
  int group;
  Backend& backend;  // the step holds its threads lock
  void* scratch;  // for run_attention
  const int32_t* abort;
};

/** Attention of the `wanted` sequences but sparse ones; all of their keys are local. Rows of sequences with `failed_sequences` 1 become 0. */
void run_local(const RemoteAttentionCall& call, const std::vector<AttentionSequence>& sequences, const std::vector<int>& wanted, const uint8_t* failed_sequences);

/** The remote keys of a program: the plan of the current step, and its queries from layer to layer. */
class RemoteAttention {
 public:
  /** A query fails if its endpoint has answered nothing for `deadline`. */
  explicit RemoteAttention(std::chrono::milliseconds deadline) : deadline_(deadline) {}

  /**
   * Begins a step. `sequences` holds those of each layer group. `failed_sequences` (sequences of the step): entries of 1
   * send no queries; 1 is written for sequences with refused or late remote keys. All arguments must stay valid until the
   * step ends. Costs nothing without remote keys.
   */
  void begin(const StepView& step, const std::vector<std::vector<AttentionSequence>>& sequences, uint8_t* failed_sequences);
  bool any(int group) const { return static_cast<size_t>(group) < groups_.size() && groups_[group].remote; }
  /** Returns early if `abort` is set: the step is aborted and its output is invalid. */
  void run(const RemoteAttentionCall& call);
  bool aborted() const { return aborted_; }

 private:
  using Clock = std::chrono::steady_clock;

  /** Adjacent keys of a sequence at one endpoint: ranges [first, end), remote keys [keys, keys_end) of the step. */
  struct Extent {
    std::shared_ptr<RemoteAttentionEndpoint> endpoint;
    int first, end;
    size_t keys, keys_end;
  };
  /** Rows [token, token + tokens) of a sequence, few enough that an endpoint answers them soon. */
  struct Root {
    int sequence;
    int token, tokens;
    std::vector<AttentionPiece> pieces;
  };
  /** The query to one endpoint for the rows of a root. */
  struct Request {
    int root;
    std::shared_ptr<RemoteAttentionEndpoint> endpoint;
    std::vector<QueryKeys> keys;
    std::vector<int32_t> blocks;
    std::vector<QueryNode> nodes;
    std::vector<int> pieces;  // indices of the root's pieces that are the nodes
    std::shared_ptr<RemoteQuery> query;
    std::vector<Partial> partials;  // of the nodes
  };
  /** Roots with partials in memory at the same time, and their requests. */
  struct Wave {
    size_t root, root_end, request, request_end;
  };
  struct Group {
    bool remote = false;
    int heads = 0;  // for which it is planned; 0: not planned
    std::vector<Root> roots;
    std::vector<Request> requests;
    std::vector<Wave> waves;
    std::vector<int> local;  // sequences with local keys alone
  };

  void plan(Group& group, const RemoteAttentionCall& call);
  std::vector<Extent> extents_of(int sequence, int group) const;
  void plan_sequence(Group& group, const RemoteAttentionCall& call, int sequence, const std::vector<Extent>& extents, int most);
  void add_request(Group& group, const Extent& extent, int first_piece);
  void plan_waves(Group& group, const RemoteAttentionCall& call);

  void post(Group& group, const Wave& wave, const RemoteAttentionCall& call);
  void read_pages(Group& group, const Wave& wave, const RemoteAttentionCall& call);
  bool await_pages(const Request& request, Clock::time_point& last_arrival, const RemoteAttentionCall& call);
  void run_wave(Group& group, const Wave& wave, const RemoteAttentionCall& call, bool first);
  void await(Group& group, const Wave& wave, const RemoteAttentionCall& call);
  bool all_ended(Group& group, const Wave& wave);
  void fail(Group& group, const Wave& wave, int sequence);
  std::vector<AttentionRoot> roots_of(const Group& group, const Wave& wave, const RemoteAttentionCall& call) const;
  bool failed(const Root& root) const { return failed_sequences_[root.sequence] != 0; }

  std::chrono::milliseconds deadline_;
  std::shared_ptr<EventCount> event_ = std::make_shared<EventCount>();
  const StepView* step_ = nullptr;
  const std::vector<std::vector<AttentionSequence>>* sequences_ = nullptr;
  std::vector<Group> groups_;
  uint8_t* failed_sequences_ = nullptr;
  bool aborted_ = false;
  uint64_t op_ = 0;  // number of the attention op in progress, unique in the process
  GrowingMemory memory_;
};

}  // namespace kvasir
