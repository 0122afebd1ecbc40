// Bindings of programs: creating them from their encoded form, running steps, reading and writing buffers.
#include <napi.h>

#include "addon/addon.hpp"

namespace kvasir {
namespace {

/** (backend, ints, floats, linears, vectors, remoteWaitMs) => program */
Napi::Value bind_create_program(Arguments& in, Napi::Env env) {
  ProgramBindings bindings;
  bindings.backend = registries().backends.get(in.handle("backend"));
  const Span<int32_t> ints = in.array<int32_t>("encoded integers");
  const Span<double> floats = in.array<double>("encoded floats");
  const Span<int32_t> linears = in.array<int32_t>("linears");
  const Span<int32_t> vectors = in.array<int32_t>("vectors");
  for (size_t i = 0; i < linears.size; i++) bindings.linears.push_back(registries().linears.get(linears[i])->linear);
  for (size_t i = 0; i < vectors.size; i++) bindings.vectors.push_back(registries().vectors.get(vectors[i]));
  const std::chrono::milliseconds wait(in.integer("remoteWaitMs", 1, INT32_MAX));
  auto program = std::make_shared<Program>(EncodedReader(ints.data, ints.size, floats.data, floats.size), bindings, wait);
  return Napi::Number::New(env, registries().programs.add(std::move(program)));
}

Napi::Value bind_free_program(Arguments& in, Napi::Env env) {
  registries().programs.remove(in.handle("program"));
  return env.Undefined();
}

Napi::Value bind_program_bytes(Arguments& in, Napi::Env env) {
  return Napi::Number::New(env, static_cast<double>(registries().programs.get(in.handle("program"))->bytes()));
}

StepSamplingView read_sampling(Arguments& in) {
  StepSamplingView s;
  s.temperature = in.array<float>("temperature");
  s.top_p = in.array<float>("topP");
  s.top_k = in.array<int32_t>("topK");
  s.min_p = in.array<float>("minP");
  s.seed = in.array<uint32_t>("seed");
  s.token_index = in.array<uint32_t>("tokenIndex");
  s.repetition_penalty = in.array<float>("repetitionPenalty");
  s.frequency_penalty = in.array<float>("frequencyPenalty");
  s.presence_penalty = in.array<float>("presencePenalty");
  s.seen_start = in.array<int32_t>("seenStart");
  s.seen_tokens = in.array<int32_t>("seenTokens");
  s.seen_counts = in.array<int32_t>("seenCounts");
  s.bias_start = in.array<int32_t>("biasStart");
  s.bias_tokens = in.array<int32_t>("biasTokens");
  s.bias_values = in.array<float>("biasValues");
  s.top_logprobs = in.array<int32_t>("topLogprobs");
  s.has_target = in.array<uint8_t>("hasTarget");
  s.target = in.array<int32_t>("target");
  s.mask_start = in.array<int32_t>("masks.start");
  s.mask_words = in.array<uint32_t>("masks.words");
  return s;
}

StepGroupView read_group(Arguments& in) {
  StepGroupView group;
  group.layers = in.integer("layers", 1, 1 << 16);
  group.page_table = in.array<int32_t>("pageTable");
  group.blocks = in.array<int32_t>("blocks");
  group.block_start = in.array<int32_t>("blockStart");
  group.first_block = in.array<int32_t>("firstBlock");
  return group;
}

/** `find`: an endpoint belongs to the thread that created it, and a step does not keep its handle alive. */
RemoteKeysView read_remote(Arguments& in) {
  RemoteKeysView keys;
  keys.sequence = in.integer("remote.sequence", 0, INT32_MAX);
  keys.group = in.integer("remote.group", 0, INT32_MAX);
  keys.first_block = in.integer("remote.firstBlock", 0, INT32_MAX);
  keys.endpoint = registries().remote_endpoints.find(in.handle("remote.endpoint"));
  keys.loan = in.integer("remote.loan", 0, INT32_MAX);
  keys.blocks = in.array<int32_t>("remote.blocks");
  return keys;
}

/** `find`, as for endpoints. */
ArrivingKeysView read_arriving(Arguments& in) {
  ArrivingKeysView keys;
  keys.sequence = in.integer("arriving.sequence", 0, INT32_MAX);
  keys.arrivals = registries().arrivals.find(in.handle("arriving.arrivals"));
  keys.within = std::chrono::milliseconds(in.integer("arriving.withinMs", 0, INT32_MAX));
  return keys;
}

/** Handle 0: none. */
RowPagesView read_row_pages(Arguments& in, const char* what) {
  RowPagesView rows;
  const int pool = in.integer(what, 0, INT32_MAX);
  if (pool == 0) return rows;
  rows.pool = registries().pools.get(pool);
  rows.pages = in.array<int32_t>(what);
  return rows;
}

ArrivingRowsView read_arriving_rows(Arguments& in) {
  ArrivingRowsView arriving = {read_row_pages(in, "rowsIn"), nullptr, std::chrono::milliseconds(0)};
  if (!arriving.rows.pool) return arriving;
  arriving.arrivals = registries().arrivals.find(in.handle("rowsIn.arrivals"));
  arriving.within = std::chrono::milliseconds(in.integer("rowsIn.withinMs", 0, INT32_MAX));
  return arriving;
}

/** `find`, as for endpoints. */
std::vector<std::shared_ptr<WorkerLink>> read_attention_workers(Arguments& in) {
  const Span<int32_t> handles = in.array<int32_t>("attentionWorkers");
  std::vector<std::shared_ptr<WorkerLink>> links;
  for (size_t i = 0; i < handles.size; i++) links.push_back(registries().worker_links.find(handles[i]));
  return links;
}

SlotTableView read_slots(Arguments& in) {
  SlotTableView slots;
  slots.pages = in.array<int32_t>("slots.pages");
  slots.page_start = in.array<int32_t>("slots.pageStart");
  slots.states = in.array<int32_t>("slots.states");
  return slots;
}

SparseKeysView read_sparse(Arguments& in) {
  SparseKeysView keys;
  keys.sequence = in.integer("sparse.sequence", 0, INT32_MAX);
  keys.group = in.integer("sparse.group", 0, INT32_MAX);
  keys.slots = read_slots(in);
  keys.kept = in.array<int32_t>("sparse.kept");
  keys.budget = in.array<int32_t>("sparse.budget");
  keys.compact_every = in.integer("sparse.compactEvery", 0, 1 << 20);
  keys.recent = in.integer("sparse.recent", 0, INT32_MAX);
  keys.decay = static_cast<float>(in.real("sparse.decay"));
  keys.head_reduce = static_cast<HeadReduce>(in.integer("sparse.headReduce", 0, 1));
  return keys;
}

KvSelectionView read_selection(Arguments& in) {
  KvSelectionView selection;
  selection.sequence = in.integer("selection.sequence", 0, INT32_MAX);
  selection.group = in.integer("selection.group", 0, INT32_MAX);
  selection.slots = read_slots(in);
  selection.budget = in.array<int32_t>("selection.budget");
  selection.observed = in.integer("selection.observed", 1, INT32_MAX);
  selection.recent = in.integer("selection.recent", 0, INT32_MAX);
  selection.pooling = static_cast<Pooling>(in.integer("selection.pooling", 0, 1));
  selection.pooling_width = in.integer("selection.pooling.width", 1, 1 << 20);
  selection.head_reduce = static_cast<HeadReduce>(in.integer("selection.headReduce", 0, 1));
  return selection;
}

PageSelectionView read_page_selection(Arguments& in) {
  PageSelectionView selection;
  selection.sequence = in.integer("pageSelection.sequence", 0, INT32_MAX);
  selection.group = in.integer("pageSelection.group", 0, INT32_MAX);
  selection.bounds = in.array<int32_t>("pageSelection.bounds");
  selection.bounded = in.integer("pageSelection.bounded", 0, INT32_MAX);
  selection.budget = in.integer("pageSelection.budget", 2, INT32_MAX);
  selection.top_p = static_cast<float>(in.real("pageSelection.topP"));
  return selection;
}

/** Index in the abort array of the flag "the step waits for rows"; shorter arrays have no such flag. */
constexpr size_t kWaitingWord = 2;

template <class T>
T* result_array(Arguments& in, const char* what, size_t wanted) {
  const Span<T> span = in.array<T>(what);
  if (span.size < wanted) throw std::runtime_error(std::string("Cannot run the step: ") + what + " is too short: " + std::to_string(span.size) + " of " + std::to_string(wanted));
  return writable(span);
}

SamplingResult read_result(Arguments& in, size_t rows) {
  SamplingResult result;
  result.tokens = result_array<int32_t>(in, "result.tokens", rows);
  result.logprobs = result_array<float>(in, "result.logprobs", rows);
  result.top_tokens = result_array<int32_t>(in, "result.topTokens", rows * kTopLogprobsMax);
  result.top_logprobs = result_array<float>(in, "result.topLogprobs", rows * kTopLogprobsMax);
  result.failed = result_array<uint8_t>(in, "result.failed", rows);
  return result;
}

/** A program and its step, read from the arguments of a run. */
struct BoundRun {
  std::shared_ptr<Program> program;
  StepView step;
  SamplingResult result;
  Span<uint8_t> failed_sequences;  // empty if every sequence has all its keys and rows
};

/**
 * program, tokens, positions, rowStart, logitRows, sampling.., result.., groups, group.., failedSequences, remotes, remote..,
 * arriving, arriving.., rowsIn.., rowsOut.., attentionWorkers, sequenceWorkers, sparse, sparse.., selections, selections..,
 * pageSelections, pageSelections... The fields of sampling, result and each group are in the order of
 * src/kernel/native/step.ts.
 */
std::unique_ptr<BoundRun> read_run(Arguments& in, const Span<int32_t>& abort) {
  auto run = std::make_unique<BoundRun>();
  run->program = registries().programs.get(in.handle("program"));
  StepView& step = run->step;
  if (abort.size > kWaitingWord) step.waiting = writable(abort) + kWaitingWord;
  step.tokens = in.array<int32_t>("tokens");
  step.positions = in.array<int32_t>("positions");
  step.row_start = in.array<int32_t>("rowStart");
  step.logit_rows = in.array<int32_t>("logitRows");
  step.sampling = read_sampling(in);
  run->result = read_result(in, step.logit_rows.size);
  const int groups = in.integer("groups", 0, 1 << 16);
  for (int i = 0; i < groups; i++) step.groups.push_back(read_group(in));
  run->failed_sequences = in.array<uint8_t>("failedSequences");
  const int remotes = in.integer("remotes", 0, INT32_MAX);
  for (int i = 0; i < remotes; i++) step.remote.push_back(read_remote(in));
  const int arriving = in.integer("arriving", 0, INT32_MAX);
  for (int i = 0; i < arriving; i++) step.arriving.push_back(read_arriving(in));
  step.rows_in = read_arriving_rows(in);
  step.rows_out = read_row_pages(in, "rowsOut");
  step.attention_workers = read_attention_workers(in);
  step.sequence_workers = in.array<int32_t>("sequenceWorkers");
  for (int left = in.integer("sparse", 0, INT32_MAX); left > 0; left--) step.sparse.push_back(read_sparse(in));
  for (int left = in.integer("selections", 0, INT32_MAX); left > 0; left--) step.selections.push_back(read_selection(in));
  for (int left = in.integer("pageSelections", 0, INT32_MAX); left > 0; left--) step.page_selections.push_back(read_page_selection(in));
  step.token_types = in.array<uint8_t>("tokenTypes");
  step.needs_logits = in.integer("needsLogits", 0, 2) == 1;
  const bool can_fail = remotes + arriving > 0 || step.rows_in.rows.pool || !step.attention_workers.empty();
  if (can_fail && run->failed_sequences.size < static_cast<size_t>(step.sequences())) throw std::runtime_error("Cannot run the step: failedSequences is too short");
  return run;
}

/**
 * (pool, abort, done, replicas, turns, run..): as many runs as `done` has entries, which become 1 for steps that were
 * not aborted. `replicas`: backends beside that of the programs. `turns`: pairs of batch and replica. The
 * process may end during a step: then no JavaScript value can be created after it.
 */
Napi::Value bind_run(Arguments& in, Napi::Env env) {
  const auto pool = registries().pools.get(in.handle("KV pool"));
  const Span<int32_t> abort = in.array<int32_t>("abort");
  if (abort.size == 0) throw std::runtime_error("Cannot run the step: the abort array is empty");
  const Span<uint8_t> done = in.array<uint8_t>("done");
  if (done.size == 0) throw std::runtime_error("Cannot run the step: there is none");
  std::vector<std::shared_ptr<Backend>> replicas(1);  // the first is that of the programs
  const Span<int32_t> others = in.array<int32_t>("replicas"), order = in.array<int32_t>("turns");
  for (size_t i = 0; i < others.size; i++) replicas.push_back(registries().backends.get(others[i]));
  std::vector<SliceTurn> turns;
  for (size_t i = 0; i + 1 < order.size; i += 2) turns.push_back({order[i], order[i + 1]});
  std::vector<std::unique_ptr<BoundRun>> bound;
  std::vector<ProgramRun> runs;
  while (bound.size() < done.size) {
    bound.push_back(read_run(in, abort));
    const BoundRun& run = *bound.back();
    for (const ProgramRun& other : runs)
      if (other.program == run.program.get()) throw std::runtime_error("Cannot run the steps: two name the same program");
    runs.push_back({run.program.get(), &run.step, run.result});
  }
  replicas.front() = bound.front()->program->backend();
  const std::vector<bool> outcomes = run_staggered(*pool, runs, replicas, turns, abort.data);
  for (size_t i = 0; i < outcomes.size(); i++) {
    const std::vector<uint8_t>& failed_sequences = bound[i]->program->failed_sequences();
    if (bound[i]->failed_sequences.size > 0) std::copy(failed_sequences.begin(), failed_sequences.end(), writable(bound[i]->failed_sequences));
    writable(done)[i] = outcomes[i] ? 1 : 0;
  }
  return env.Undefined();
}

struct BufferArguments {
  std::shared_ptr<Program> program;
  const Buffer* buffer;
  int rows;
  Span<float> values;

  explicit BufferArguments(Arguments& in) : program(registries().programs.get(in.handle("program"))) {
    const int index = in.integer("buffer", 0, INT32_MAX);
    rows = in.integer("rows", 0, INT32_MAX);
    buffer = &program->open_buffer(index, rows);
    values = in.array<float>("values");
    const size_t wanted = static_cast<size_t>(rows) * buffer->columns;
    if (values.size == wanted) return;
    throw std::runtime_error("Cannot use buffer values: wrong length: " + std::to_string(values.size) + ", not " + std::to_string(wanted));
  }

  float* row(int index) const { return writable(values) + static_cast<size_t>(index) * buffer->columns; }
};

/** (program, buffer) => columns */
Napi::Value bind_buffer_columns(Arguments& in, Napi::Env env) {
  const auto program = registries().programs.get(in.handle("program"));
  return Napi::Number::New(env, program->open_buffer(in.integer("buffer", 0, INT32_MAX), 0).columns);
}

/** (program, buffer, rows, out) */
Napi::Value bind_read_buffer(Arguments& in, Napi::Env env) {
  const BufferArguments given(in);
  for (int row = 0; row < given.rows; row++) given.buffer->read_row(row, given.row(row));
  return env.Undefined();
}

/** (program, buffer, rows, values) */
Napi::Value bind_write_buffer(Arguments& in, Napi::Env env) {
  const BufferArguments given(in);
  for (int row = 0; row < given.rows; row++) given.buffer->write_row(row, given.row(row));
  return env.Undefined();
}

}  // namespace

void bind_programs(Napi::Env env, Napi::Object exports) {
  bind<bind_create_program>(env, exports, "createProgram");
  bind<bind_free_program>(env, exports, "freeProgram");
  bind<bind_program_bytes>(env, exports, "programBytes");
  bind<bind_run>(env, exports, "run");
  bind<bind_buffer_columns>(env, exports, "bufferColumns");
  bind<bind_read_buffer>(env, exports, "readBuffer");
  bind<bind_write_buffer>(env, exports, "writeBuffer");
}

}  // namespace kvasir
