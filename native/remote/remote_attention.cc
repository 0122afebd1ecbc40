// One attention op with remote keys: posts queries, computes local keys, waits, merges.
#include "remote/remote_attention.hpp"

#include <utility>

#include "base/spin.hpp"

namespace kvasir {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(1);  // interval of checks of the abort flag and of deadlines

}  // namespace

void clear_rows(const StreamOutput& output, size_t row, size_t rows, int heads, int head_dim) {
  std::fill_n(output.out + row * heads * head_dim, rows * heads * head_dim, 0.0f);
  if (output.max == nullptr) return;
  std::fill_n(output.max + row * heads, rows * heads, -INFINITY);
  std::fill_n(output.sum + row * heads, rows * heads, 0.0f);
}

void run_local(const RemoteAttentionCall& call, const std::vector<AttentionSequence>& sequences, const std::vector<int>& wanted, const uint8_t* failed_sequences) {
  std::vector<AttentionSequence> rest;
  for (const int s : wanted) {
    const AttentionSequence& sequence = sequences[s];
    if (sequence.is_sparse) continue;
    if (failed_sequences[s] == 0) rest.push_back(sequence);
    else clear_rows(call.output, sequence.row, sequence.rows, call.args.heads, call.args.layout.head_dim);
  }
  if (rest.empty()) return;
  AttentionArgs args = call.args;
  args.sequences = rest.data();
  args.sequence_count = static_cast<int>(rest.size());
  run_attention(call.backend.pool, args, call.query, call.output, call.scratch);
}

void RemoteAttention::run(const RemoteAttentionCall& call) {
  static std::atomic<uint64_t> ops{0};
  op_ = ++ops;
  Group& group = groups_[call.group];
  if (group.heads != call.args.heads) plan(group, call);
  for (size_t wave = 0; wave < group.waves.size(); wave++) {
    if (aborted_) return;
    run_wave(group, group.waves[wave], call, wave == 0);
  }
}

void RemoteAttention::run_wave(Group& group, const Wave& wave, const RemoteAttentionCall& call, bool first) {
  post(group, wave, call);
  ThreadPool& threads = call.backend.pool;
  if (first) run_local(call, (*sequences_)[call.group], group.local, failed_sequences_);
  const std::vector<AttentionRoot> roots = roots_of(group, wave, call);
  AttentionPieces pieces(call.args, call.query, roots.data(), static_cast<int>(roots.size()));
  const size_t workspace_bytes = pieces.workspace_bytes();
  uint8_t* memory = memory_.at_least(workspace_bytes * threads.size() + pieces.partial_bytes());
  pieces.use_partials(memory + workspace_bytes * threads.size());
  threads.run(pieces.tasks(), [&](int task, int thread) {
    const Root& root = group.roots[wave.root + pieces.root_of_task(task)];
    pieces.run_task(task, memory + workspace_bytes * thread, [&] { return !failed(root); });
  });
  read_pages(group, wave, call);
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

std::vector<AttentionRoot> RemoteAttention::roots_of(const Group& group, const Wave& wave, const RemoteAttentionCall& call) const {
  std::vector<AttentionRoot> roots;
  for (size_t i = wave.root; i < wave.root_end; i++) {
    const Root& root = group.roots[i];
    roots.push_back({&(*sequences_)[call.group][root.sequence], root.token, root.tokens, root.pieces, call.output, 0});
  }
  for (size_t i = wave.request; i < wave.request_end; i++) {
    const Request& request = group.requests[i];
    for (size_t node = 0; node < request.nodes.size(); node++) roots[request.root - wave.root].pieces[request.pieces[node]].remote_partial = &request.partials[node];
  }
  return roots;
}

void RemoteAttention::post(Group& group, const Wave& wave, const RemoteAttentionCall& call) {
  const AttentionArgs& args = call.args;
  const size_t row_bytes = query_bytes(args.isa, args.layout.type, args.heads, args.layout.head_dim, 1);
  for (size_t i = wave.request; i < wave.request_end; i++) {
    Request& request = group.requests[i];
    const Root& root = group.roots[request.root];
    request.partials.resize(request.nodes.size());
    if (failed(root)) continue;
    if (request.endpoint == nullptr) {
      fail(group, wave, root.sequence);
      continue;
    }
    const AttentionSequence& sequence = (*sequences_)[call.group][root.sequence];
    if (request.query == nullptr) {
      request.query = std::make_shared<RemoteQuery>();
      request.query->isa = args.isa;
      request.query->layout = args.layout;
      request.query->heads = args.heads;
      request.query->rows = root.tokens;
      request.query->start = sequence.start + root.token;
      request.query->keys = request.keys;
      request.query->blocks = request.blocks;
      request.query->nodes = request.nodes;
      request.query->answered = event_;
    }
    RemoteQuery& query = *request.query;
    query.layer = args.layer;
    query.scale = args.scale;
    query.softcap = args.softcap;
    query.slopes.assign(args.slopes, args.slopes == nullptr ? args.slopes : args.slopes + args.heads);
    const auto* from = static_cast<const uint8_t*>(call.query) + row_bytes * (sequence.row + root.token);
    query.query.assign(from, from + row_bytes * root.tokens);
    query.open();
    for (size_t node = 0; node < request.nodes.size(); node++) request.partials[node] = query.partial(node);
    if (request.endpoint->reads_pages()) {
      request.endpoint->prepare(query, op_);
      continue;
    }
    request.endpoint->post(request.query);
    call.backend.remote.queries++;
    call.backend.remote.bytes_out += query.bytes_out();
  }
}

/** Computes over pages at creditors with the threads of the step. */
void RemoteAttention::read_pages(Group& group, const Wave& wave, const RemoteAttentionCall& call) {
  auto last_arrival = Clock::now();
  for (size_t i = wave.request; i < wave.request_end && !aborted_; i++) {
    const Request& request = group.requests[i];
    if (request.query == nullptr || !request.query->is_open() || !request.endpoint->reads_pages()) continue;
    if (await_pages(request, last_arrival, call)) {
      request.endpoint->post(request.query);
      // Pages may have arrived unseen during the computation, which is no wait for them.
      last_arrival = Clock::now();
    } else if (!aborted_) {
      fail(group, wave, group.roots[request.root].sequence);
    }
  }
}

/** False if the step is aborted, or the pages have not arrived `deadline` after `last_arrival`. */
bool RemoteAttention::await_pages(const Request& request, Clock::time_point& last_arrival, const RemoteAttentionCall& call) {
  const auto is_aborted = [&] { return aborted_ = __atomic_load_n(call.abort, __ATOMIC_RELAXED) != 0; };
  bool ready = request.endpoint->is_ready(*request.query);
  if (ready) return !is_aborted();
  const auto begin = Clock::now();
  call.backend.threads_lock.unlock();
  while (!ready && !is_aborted() && Clock::now() - last_arrival <= deadline_) {
    const uint32_t seen = event_->epoch();
    ready = request.endpoint->is_ready(*request.query);
    if (!ready && !spin([&] { return event_->epoch() != seen; })) event_->wait_for(seen, kPollInterval);
  }
  call.backend.threads_lock.lock();
  if (ready) last_arrival = Clock::now();
  const std::chrono::nanoseconds waited = Clock::now() - begin;
  call.backend.remote.wait_nanoseconds += static_cast<uint64_t>(waited.count());
  return ready && !aborted_;
}

/** Stops waiting for the sequence's answers in this step. */
void RemoteAttention::fail(Group& group, const Wave& wave, int sequence) {
  failed_sequences_[sequence] = 1;
  for (size_t i = wave.request; i < wave.request_end; i++) {
    Request& request = group.requests[i];
    if (group.roots[request.root].sequence != sequence || request.query == nullptr || !request.query->is_open()) continue;
    request.query->dropped.store(true, std::memory_order_relaxed);
    request.query = nullptr;  // the endpoint may still write to it
  }
}

bool RemoteAttention::all_ended(Group& group, const Wave& wave) {
  for (size_t i = wave.request; i < wave.request_end; i++)
    if (group.requests[i].query != nullptr && group.requests[i].query->is_open()) return false;
  return true;
}

/**
 * Waits until all queries have ended or the step is aborted. Meanwhile queries from other instances may use the
 * threads.
 */
void RemoteAttention::await(Group& group, const Wave& wave, const RemoteAttentionCall& call) {
  const auto begin = Clock::now();
  std::vector<bool> ended(wave.request_end - wave.request, false);
  std::vector<std::pair<RemoteAttentionEndpoint*, Clock::time_point>> answers;  // the last answer of each endpoint
  const auto last_answer = [&](RemoteAttentionEndpoint* endpoint) -> Clock::time_point& {
    for (auto& [known, at] : answers)
      if (known == endpoint) return at;
    return answers.emplace_back(endpoint, begin).second;
  };
  const bool waits = !all_ended(group, wave);
  if (waits) call.backend.threads_lock.unlock();
  while (!aborted_) {
    const uint32_t seen = event_->epoch();
    const auto now = Clock::now();
    bool open = false;
    for (size_t i = wave.request; i < wave.request_end; i++) {
      Request& request = group.requests[i];
      if (request.query == nullptr || ended[i - wave.request]) continue;
      const RemoteQuery::State state = request.query->state.load(std::memory_order_acquire);
      if (state == RemoteQuery::State::open) {
        open = true;
        continue;
      }
      ended[i - wave.request] = true;
      last_answer(request.endpoint.get()) = now;
      if (state == RemoteQuery::State::answered && !request.endpoint->reads_pages()) call.backend.remote.bytes_in += request.query->bytes_back();
      if (state == RemoteQuery::State::refused) fail(group, wave, group.roots[request.root].sequence);
    }
    for (size_t i = wave.request; open && i < wave.request_end; i++) {
      Request& request = group.requests[i];
      if (request.query != nullptr && request.query->is_open() && now - last_answer(request.endpoint.get()) > deadline_) fail(group, wave, group.roots[request.root].sequence);
    }
    if (all_ended(group, wave) && !open) break;
    aborted_ = __atomic_load_n(call.abort, __ATOMIC_RELAXED) != 0;
    if (!aborted_ && !spin([&] { return event_->epoch() != seen; })) event_->wait_for(seen, kPollInterval);
  }
  for (size_t i = wave.request; aborted_ && i < wave.request_end; i++) fail(group, wave, group.roots[group.requests[i].root].sequence);
  if (waits) call.backend.threads_lock.lock();
  const std::chrono::nanoseconds waited = Clock::now() - begin;
  call.backend.remote.wait_nanoseconds += static_cast<uint64_t>(waited.count());
}

}  // namespace kvasir
