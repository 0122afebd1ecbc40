// Attention of a step of which some keys lie at creditors: queries leave, the part at home is computed meanwhile, partials are merged in the tree.
#pragma once
#include <chrono>
#include <memory>
#include <vector>

#include "attention/pieces.hpp"
#include "base/thread_pool.hpp"
#include "ops/step.hpp"
#include "remote/endpoint.hpp"

namespace kvasir {

/** One attention op of a step. */
struct RemoteCall {
  const AttentionArgs& args;  // of all sequences of the step
  const void* query;
  StreamOutput output;
  int group;
  Team& team;  // whose turn is the step's
  void* scratch;  // of run_attention
  const int32_t* abort;
};

/** Attention of the `wanted` sequences of a step, whose keys are all at home; that of those which are `unanswered` is 0. */
void run_at_home(const RemoteCall& call, const std::vector<AttentionSequence>& sequences, const std::vector<int>& wanted, const uint8_t* unanswered);

/** What a program keeps for its remote keys: the plan of a step, and its queries from layer to layer. */
class RemoteAttention {
 public:
  /** Queries are given up when a room has answered nothing for so long. */
  explicit RemoteAttention(std::chrono::milliseconds deadline) : deadline_(deadline) {}

  /**
   * A step begins; `sequences` are those of each layer group. `unanswered` (sequences of the step): nothing is asked for those that are 1, and
   * 1 is written where remote keys are refused or late. All stay until it ends. Without remote keys it costs nothing.
   */
  void begin(const StepView& step, const std::vector<std::vector<AttentionSequence>>& sequences, uint8_t* unanswered);
  bool any(int group) const { return static_cast<size_t>(group) < groups_.size() && groups_[group].remote; }
  /** Returns early where `abort` is set: then nothing of the output counts, and the step is aborted. */
  void run(const RemoteCall& call);
  bool aborted() const { return aborted_; }

 private:
  using Clock = std::chrono::steady_clock;

  /** Neighbouring keys of a sequence in one room: ranges [first, end), of remote keys [keys, keys_end) of the step. */
  struct Stretch {
    std::shared_ptr<Room> room;
    int first, end;
    size_t keys, keys_end;
  };
  /** Rows [token, token + tokens) of a sequence: small enough that a room is soon done with them. */
  struct Root {
    int sequence;
    int token, tokens;
    std::vector<AttentionPiece> pieces;
  };
  /** What one room is asked for the rows of a root. */
  struct Ask {
    int root;
    std::shared_ptr<Room> room;
    std::vector<GuestKeys> keys;
    std::vector<int32_t> blocks;
    std::vector<GuestNode> nodes;
    std::vector<int> pieces;  // of the root, those that are the nodes
    std::shared_ptr<GuestQuery> query;
    std::vector<Partial> partials;  // of nodes
  };
  /** Roots whose partials are kept at once, and what is asked for them. */
  struct Wave {
    size_t root, root_end, ask, ask_end;
  };
  struct Group {
    bool remote = false;
    int heads = 0;  // that it is planned for; 0: not yet
    std::vector<Root> roots;
    std::vector<Ask> asks;
    std::vector<Wave> waves;
    std::vector<int> plain;  // sequences that are all at home
  };

  void plan(Group& group, const RemoteCall& call);
  std::vector<Stretch> stretches_of(int sequence, int group) const;
  void plan_sequence(Group& group, const RemoteCall& call, int sequence, const std::vector<Stretch>& stretches, int most);
  void ask(Group& group, const Stretch& stretch, int first_piece);
  void plan_waves(Group& group, const RemoteCall& call);

  void post(Group& group, const Wave& wave, const RemoteCall& call);
  void run_wave(Group& group, const Wave& wave, const RemoteCall& call, bool first);
  void await(Group& group, const Wave& wave, const RemoteCall& call);
  bool all_over(Group& group, const Wave& wave);
  void fail(Group& group, const Wave& wave, int sequence);
  std::vector<AttentionRoot> roots_of(const Group& group, const Wave& wave, const RemoteCall& call) const;
  bool failed(const Root& root) const { return unanswered_[root.sequence] != 0; }

  std::chrono::milliseconds deadline_;
  std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  const StepView* step_ = nullptr;
  const std::vector<std::vector<AttentionSequence>>* sequences_ = nullptr;
  std::vector<Group> groups_;
  uint8_t* unanswered_ = nullptr;
  bool aborted_ = false;
  GrowingMemory memory_;
};

}  // namespace kvasir
