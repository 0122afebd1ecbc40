// One attention op with remote keys: post, compute what is at home, wait, merge.
#include "remote/remote_attention.hpp"

#include <utility>

#include "base/spin.hpp"

namespace kvasir {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);  // between looks at the abort word and at deadlines

}  // namespace

void clear_rows(const StreamOutput& output, size_t row, size_t rows, int heads, int head_dim) {
  std::fill_n(output.out + row * heads * head_dim, rows * heads * head_dim, 0.0f);
  if (output.max == nullptr) return;
  std::fill_n(output.max + row * heads, rows * heads, -INFINITY);
  std::fill_n(output.sum + row * heads, rows * heads, 0.0f);
}

void run_at_home(const RemoteCall& call, const std::vector<AttentionSequence>& sequences, const std::vector<int>& wanted, const uint8_t* unanswered) {
  std::vector<AttentionSequence> rest;
  for (const int s : wanted) {
    const AttentionSequence& sequence = sequences[s];
    if (unanswered[s] == 0) rest.push_back(sequence);
    else clear_rows(call.output, sequence.row, sequence.rows, call.args.heads, call.args.layout.head_dim);
  }
  if (rest.empty()) return;
  AttentionArgs args = call.args;
  args.sequences = rest.data();
  args.sequence_count = static_cast<int>(rest.size());
  run_attention(call.team.pool, args, call.query, call.output.out, call.output.max, call.output.sum, call.scratch);
}

void RemoteAttention::run(const RemoteCall& call) {
  Group& group = groups_[call.group];
  if (group.heads != call.args.heads) plan(group, call);
  for (size_t wave = 0; wave < group.waves.size(); wave++) {
    if (aborted_) return;
    run_wave(group, group.waves[wave], call, wave == 0);
  }
}

void RemoteAttention::run_wave(Group& group, const Wave& wave, const RemoteCall& call, bool first) {
  post(group, wave, call);
  ThreadPool& threads = call.team.pool;
  if (first) run_at_home(call, (*sequences_)[call.group], group.plain, unanswered_);
  const std::vector<AttentionRoot> roots = roots_of(group, wave, call);
  AttentionPieces pieces(call.args, call.query, roots.data(), static_cast<int>(roots.size()));
  const size_t workspace_bytes = pieces.workspace_bytes();
  uint8_t* memory = memory_.at_least(workspace_bytes * threads.size() + pieces.partial_bytes());
  pieces.use_partials(memory + workspace_bytes * threads.size());
  threads.run(pieces.tasks(), [&](int task, int thread) {
    const Root& root = group.roots[wave.root + pieces.root_of_task(task)];
    pieces.run_task(task, memory + workspace_bytes * thread, [&] { return !failed(root); });
  });
  await(group, wave, call);
  if (aborted_) return;
  threads.run(pieces.merges(), [&](int merge, int thread) {
    if (!failed(group.roots[wave.root + pieces.root_of_merge(merge)])) pieces.run_merge(merge, memory + workspace_bytes * thread);
  });
  for (size_t root = wave.root; root < wave.root_end; root++) {
    const AttentionRoot& rows = roots[root - wave.root];
    if (failed(group.roots[root])) clear_rows(call.output, rows.sequence->row + rows.token, rows.tokens, call.args.heads, call.args.layout.head_dim);
  }
}

std::vector<AttentionRoot> RemoteAttention::roots_of(const Group& group, const Wave& wave, const RemoteCall& call) const {
  std::vector<AttentionRoot> roots;
  for (size_t i = wave.root; i < wave.root_end; i++) {
    const Root& root = group.roots[i];
    roots.push_back({&(*sequences_)[call.group][root.sequence], root.token, root.tokens, root.pieces, call.output, 0});
  }
  for (size_t i = wave.ask; i < wave.ask_end; i++) {
    const Ask& ask = group.asks[i];
    for (size_t node = 0; node < ask.nodes.size(); node++) roots[ask.root - wave.root].pieces[ask.pieces[node]].given = &ask.partials[node];
  }
  return roots;
}

void RemoteAttention::post(Group& group, const Wave& wave, const RemoteCall& call) {
  const AttentionArgs& args = call.args;
  const size_t row_bytes = query_bytes(args.isa, args.layout.type, args.heads, args.layout.head_dim, 1);
  for (size_t i = wave.ask; i < wave.ask_end; i++) {
    Ask& ask = group.asks[i];
    const Root& root = group.roots[ask.root];
    ask.partials.resize(ask.nodes.size());
    if (failed(root)) continue;
    if (ask.room == nullptr) {
      fail(group, wave, root.sequence);
      continue;
    }
    const AttentionSequence& sequence = (*sequences_)[call.group][root.sequence];
    if (ask.query == nullptr) {
      ask.query = std::make_shared<GuestQuery>();
      ask.query->isa = args.isa;
      ask.query->layout = args.layout;
      ask.query->heads = args.heads;
      ask.query->rows = root.tokens;
      ask.query->start = sequence.start + root.token;
      ask.query->keys = ask.keys;
      ask.query->blocks = ask.blocks;
      ask.query->nodes = ask.nodes;
      ask.query->answered = bell_;
    }
    GuestQuery& query = *ask.query;
    query.layer = args.layer;
    query.scale = args.scale;
    query.softcap = args.softcap;
    query.slopes.assign(args.slopes, args.slopes == nullptr ? args.slopes : args.slopes + args.heads);
    const auto* from = static_cast<const uint8_t*>(call.query) + row_bytes * (sequence.row + root.token);
    query.query.assign(from, from + row_bytes * root.tokens);
    query.open();
    for (size_t node = 0; node < ask.nodes.size(); node++) ask.partials[node] = query.partial(node);
    ask.room->post(ask.query);
    call.team.remote.queries++;
    call.team.remote.bytes_out += query.bytes_out();
  }
}

/** Nothing more is awaited for the sequence, in this step. */
void RemoteAttention::fail(Group& group, const Wave& wave, int sequence) {
  unanswered_[sequence] = 1;
  for (size_t i = wave.ask; i < wave.ask_end; i++) {
    Ask& ask = group.asks[i];
    if (group.roots[ask.root].sequence != sequence || ask.query == nullptr || !ask.query->is_open()) continue;
    ask.query->dropped.store(true, std::memory_order_relaxed);
    ask.query = nullptr;  // its room may still write to it
  }
}

bool RemoteAttention::all_over(Group& group, const Wave& wave) {
  for (size_t i = wave.ask; i < wave.ask_end; i++)
    if (group.asks[i].query != nullptr && group.asks[i].query->is_open()) return false;
  return true;
}

/** Until all that is asked is over, or the step is aborted. Meanwhile the threads are the guests'. */
void RemoteAttention::await(Group& group, const Wave& wave, const RemoteCall& call) {
  const auto begin = Clock::now();
  std::vector<bool> heard(wave.ask_end - wave.ask, false);
  std::vector<std::pair<Room*, Clock::time_point>> answers;  // the last of each room
  const auto last_answer = [&](Room* room) -> Clock::time_point& {
    for (auto& [known, at] : answers)
      if (known == room) return at;
    return answers.emplace_back(room, begin).second;
  };
  const bool waits = !all_over(group, wave);
  if (waits) call.team.turn.give();
  while (!aborted_) {
    const uint32_t seen = bell_->rung();
    const auto now = Clock::now();
    bool open = false;
    for (size_t i = wave.ask; i < wave.ask_end; i++) {
      Ask& ask = group.asks[i];
      if (ask.query == nullptr || heard[i - wave.ask]) continue;
      const GuestQuery::State state = ask.query->state.load(std::memory_order_acquire);
      if (state == GuestQuery::State::open) {
        open = true;
        continue;
      }
      heard[i - wave.ask] = true;
      last_answer(ask.room.get()) = now;
      if (state == GuestQuery::State::answered) call.team.remote.bytes_in += ask.query->bytes_back();
      if (state == GuestQuery::State::refused) fail(group, wave, group.roots[ask.root].sequence);
    }
    for (size_t i = wave.ask; open && i < wave.ask_end; i++) {
      Ask& ask = group.asks[i];
      if (ask.query != nullptr && ask.query->is_open() && now - last_answer(ask.room.get()) > deadline_) fail(group, wave, group.roots[ask.root].sequence);
    }
    if (all_over(group, wave) && !open) break;
    aborted_ = __atomic_load_n(call.abort, __ATOMIC_RELAXED) != 0;
    if (!aborted_ && !spin([&] { return bell_->rung() != seen; })) bell_->wait_for(seen, kLook);
  }
  for (size_t i = wave.ask; aborted_ && i < wave.ask_end; i++) fail(group, wave, group.roots[group.asks[i].root].sequence);
  if (waits) call.team.turn.take();
  const std::chrono::nanoseconds waited = Clock::now() - begin;
  call.team.remote.wait_nanoseconds += static_cast<uint64_t>(waited.count());
}

}  // namespace kvasir
