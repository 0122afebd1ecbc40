// Steps over attention workers, for sanitizers: sequences grow in random steps over two shards, some steps leave their
// results unread, prompts arrive meanwhile, workers stand still or end while a step runs, and peers send frames whose fields lie. Argument: rounds. Exits with 1
// if the bits of a row differ from those of one pool, or a valid link breaks.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "workers/attention_worker.hpp"
#include "workers/shard_sender.hpp"
#include "workers/worker_link.hpp"

using namespace kvasir;

namespace {

constexpr int kShards = 2, kLayers = 2, kSequences = 3, kTokensMost = 900, kHeads = 8;
constexpr int kBlocksEach = kTokensMost / kPageTokens + 1, kBlocks = kSequences * kBlocksEach, kPages = kBlocks * kLayers, kOtherPages = 40;
constexpr KvLayout kWhole{KvType::bf16, 4, 16}, kShard{KvType::bf16, 4 / kShards, 16};
constexpr int kRow = kHeads * 16, kKeyRow = 2 * 4 * 16;
const int32_t kNoAbort = 0;

int bad = 0;
void expect(bool holds, const char* what) {
  if (holds) return;
  bad++;
  std::fprintf(stderr, "not so: %s\n", what);
}

HashKey key() {
  HashKey key;
  key.fill(9);
  return key;
}

/** A worker with its threads and pages, and a link to it. */
struct Shard {
  std::shared_ptr<Backend> backend = std::make_shared<Backend>(Isa::portable, 2);
  std::shared_ptr<KvPool> pool = std::make_shared<KvPool>(Isa::portable, kShard, kPages + kOtherPages);
  std::unique_ptr<AttentionWorker> worker;
  std::unique_ptr<WorkerLink> link;

  explicit Shard(Transport transport) : worker(std::make_unique<AttentionWorker>(backend, pool, HostPort{"127.0.0.1", 0}, transport, key(), true)) {
    link = std::make_unique<WorkerLink>(Isa::portable, kShard, HostPort{"127.0.0.1", worker->port()}, transport, key(), std::chrono::milliseconds(20000));
  }
};

/** Sequences of random queries, keys and values, and the pool of one instance that holds all heads. */
class Steps {
 public:
  explicit Steps(unsigned seed) : random_(seed) {
    for (int page = 0; page < kPages; page++) page_table_.push_back((page * 7919 + 5) % kPages);
    scratch_.resize(attention_scratch_bytes(Isa::portable, kWhole, kHeads, 1, kSequences * kTokensMost, kTokensMost) / 64 + 1);
  }

  /** One step of random rows over the shards. With `leaves`, the results of its last layer stay unread. */
  void run(const std::vector<std::unique_ptr<Shard>>& shards, bool leaves) {
    plan();
    if (rows_ == 0) return;
    WorkerShare share;
    for (int s = 0; s < view_.sequences(); s++) share.sequences.push_back(s);
    share.rows = rows_;
    share.first_block = {0};
    for (const auto& shard : shards) shard->link->begin(view_, share, groups_, {{kLayers, kNoWindow}}, &kNoAbort);
    for (int layer = 0; layer < kLayers; layer++) {
      const std::vector<uint8_t> q = rounded(kHeads, 16), kv = rounded(2 * 4, 16);
      for (int s = 0; s < kShards; s++) {
        WorkerFrame frame = {};
        frame.call = frame.layer = layer;
        frame.heads = kHeads / kShards;
        frame.rows = rows_;
        frame.scale = 0.25f;
        shards[s]->link->send_query(frame, nullptr, part(q, kRow * 2, s, 1));
        shards[s]->link->send_keys(frame, part(kv, kKeyRow * 2, s, 2), static_cast<size_t>(rows_) * kRow / kShards);
      }
      const std::vector<float> expected = attend(layer, q, kv);
      for (int s = 0; s < kShards && !(leaves && layer == kLayers - 1); s++) {
        std::vector<float> got;
        if (!shards[s]->link->receive(got, &kNoAbort)) {
          expect(false, "a valid link answers");
          return;
        }
        for (int row = 0; row < rows_; row++)
          expect(std::memcmp(&got[static_cast<size_t>(row) * kRow / kShards], &expected[static_cast<size_t>(row) * kRow + s * kRow / kShards], sizeof(float) * kRow / kShards) == 0,
                 "rows have the bits of one pool");
      }
    }
    // A step whose results are unread runs again.
    for (int s = 0; s < kSequences && !leaves; s++) lengths_[s] += chunk_[s];
  }

  /** Announces a step to the worker. False if its link is stalled. */
  bool begins(const Shard& shard, std::optional<StallLimits> limits) {
    do plan();
    while (rows_ == 0);
    WorkerShare share;
    for (int s = 0; s < view_.sequences(); s++) share.sequences.push_back(s);
    share.rows = rows_;
    share.first_block = {0};
    shard.link->begin(view_, share, groups_, {{kLayers, kNoWindow}}, &kNoAbort, limits);
    return !shard.link->is_stalled();
  }

  /** The same with one call of attention. */
  bool answers(const Shard& shard, std::optional<StallLimits> limits) {
    if (!begins(shard, limits)) return false;
    const std::vector<uint8_t> q = rounded(kHeads, 16), kv = rounded(2 * 4, 16);
    WorkerFrame frame = {};
    frame.heads = kHeads / kShards;
    frame.rows = rows_;
    frame.scale = 0.25f;
    std::vector<float> got;
    shard.link->send_query(frame, nullptr, part(q, kRow * 2, 0, 1));
    shard.link->send_keys(frame, part(kv, kKeyRow * 2, 0, 2), static_cast<size_t>(rows_) * kRow / kShards);
    return shard.link->receive(got, &kNoAbort);
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  void plan() {
    row_start_.assign(1, 0);
    positions_.clear();
    groups_.assign(1, {});
    block_start_.clear();
    first_block_.clear();
    blocks_.clear();
    rows_ = 0;
    for (int s = 0; s < kSequences; s++) {
      chunk_[s] = std::min(below(3) == 0 ? below(200) : 1, kTokensMost - lengths_[s]);
      if (chunk_[s] == 0) continue;
      for (int i = 0; i < chunk_[s]; i++) positions_.push_back(lengths_[s] + i);
      rows_ += chunk_[s];
      row_start_.push_back(rows_);
    }
    blocks_.reserve(kBlocks);
    for (int s = 0; s < kSequences; s++) {
      if (chunk_[s] == 0) continue;
      block_start_.push_back(static_cast<int32_t>(blocks_.size()));
      first_block_.push_back(0);
      for (int b = 0; b < kBlocksEach; b++) blocks_.push_back(s * kBlocksEach + b);
      const int row = row_start_[groups_[0].size()];
      groups_[0].push_back({row, chunk_[s], lengths_[s], blocks_.data() + block_start_.back(), 0});
    }
    tokens_.assign(static_cast<size_t>(rows_), 0);
    view_ = StepView{};
    view_.tokens = {tokens_.data(), tokens_.size()};
    view_.positions = {positions_.data(), positions_.size()};
    view_.row_start = {row_start_.data(), row_start_.size()};
    StepGroupView group;
    group.page_table = {page_table_.data(), page_table_.size()};
    group.layers = kLayers;
    group.blocks = {blocks_.data(), blocks_.size()};
    group.block_start = {block_start_.data(), block_start_.size()};
    group.first_block = {first_block_.data(), first_block_.size()};
    view_.groups.push_back(group);
  }

  std::vector<uint8_t> rounded(int heads, int dim) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<uint8_t> bytes(query_bytes(Isa::portable, KvType::bf16, heads, dim, rows_));
    std::vector<float> row(static_cast<size_t>(heads) * dim);
    for (int i = 0; i < rows_; i++) {
      for (float& value : row) value = normal(random_);
      write_query_row(Isa::portable, KvType::bf16, heads, dim, bytes.data(), i, row.data());
    }
    return bytes;
  }

  /** The share of a shard in each of the `halves` parts of every row. */
  std::vector<uint8_t> part(const std::vector<uint8_t>& rows, size_t row_bytes, int shard, int halves) const {
    const size_t half = row_bytes / halves, share = half / kShards;
    std::vector<uint8_t> out;
    for (int row = 0; row < rows_; row++)
      for (int h = 0; h < halves; h++) {
        const uint8_t* from = rows.data() + row_bytes * row + half * h + share * shard;
        out.insert(out.end(), from, from + share);
      }
    return out;
  }

  std::vector<float> attend(int layer, const std::vector<uint8_t>& q, const std::vector<uint8_t>& kv) {
    AttentionArgs args{Isa::portable, kWhole, pool_.data(), page_table_.data(), kLayers, layer, kHeads, 0.25f, groups_[0].data(), static_cast<int>(groups_[0].size()), rows_};
    std::vector<float> values(kKeyRow), out(static_cast<size_t>(rows_) * kRow);
    for (const AttentionSequence& sequence : groups_[0])
      for (int i = 0; i < sequence.rows; i++) {
        read_query_row(Isa::portable, KvType::bf16, 8, 16, kv.data(), sequence.row + i, values.data());
        const int position = sequence.start + i;
        write_kv(Isa::portable, kWhole, args.page(sequence, position / kPageTokens), position % kPageTokens, values.data(), values.data() + kKeyRow / 2);
      }
    run_attention(threads_, args, q.data(), {out.data(), nullptr, nullptr}, scratch_.data());
    return out;
  }

  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::mt19937 random_;
  ThreadPool threads_{1};
  KvPool pool_{Isa::portable, kWhole, kPages};
  std::vector<Line> scratch_;
  std::vector<int32_t> page_table_, tokens_, positions_, row_start_, block_start_, first_block_, blocks_;
  std::vector<std::vector<AttentionSequence>> groups_;
  StepView view_;
  int rows_ = 0;
  int lengths_[kSequences] = {0, 0, 0}, chunk_[kSequences] = {0, 0, 0};
};

/** The worker's answer to a link of this owner. The connection ends if another owner has the pages. */
WorkerHello answer_to(const Shard& shard, uint64_t owner) {
  const std::atomic<bool> ended{false};
  const auto connection = open_connection({"127.0.0.1", shard.worker->port()}, Transport::tcp, key(), kShard, 2000, ended);
  expect(connection != nullptr, "the worker accepts connections");
  ModelWorkerHello own;
  own.owner = owner;
  own.checksum = worker_checksum(own);
  WorkerHello hello = {};
  connection->send(&own, sizeof own, in_milliseconds(2000), ended);
  expect(connection->receive(&hello, sizeof hello, in_milliseconds(2000), ended), "the worker describes itself");
  uint8_t more;
  if (hello.is_taken == 1) expect(!connection->receive(&more, 1, in_milliseconds(2000), ended), "the refused connection ends");
  return hello;
}

/** Links of another process and of an earlier generation are refused while the shard's own is open. */
void refuse_other_owners(const Shard& shard) {
  const uint64_t owner = *link_owner({"127.0.0.1", shard.worker->port()});
  expect(answer_to(shard, owner ^ (kOwnerGenerations + 1)).is_taken == 1, "another process is refused");
  expect(answer_to(shard, owner - 1).is_taken == 1, "an earlier generation is refused");
}

/** Links of a later generation end the shard's own. */
void supersede(const Shard& shard) {
  expect(answer_to(shard, *link_owner({"127.0.0.1", shard.worker->port()}) + 1).is_taken == 0, "a later generation has the pages");
  std::vector<float> none;
  const auto deadline = in_milliseconds(2000);
  shard.link->send_keys({}, {}, 1);
  expect(!shard.link->receive(none, &kNoAbort) && std::chrono::steady_clock::now() < deadline, "a superseded link ends");
}

/** A link that is opened after another one broke ends those that are still open: they are of its generation. */
void end_broken_generation(const Shard& shard, Transport transport) {
  const auto connect = [&] { return std::make_unique<WorkerLink>(Isa::portable, kShard, HostPort{"127.0.0.1", shard.worker->port()}, transport, key(), std::chrono::milliseconds(20000)); };
  const auto stores = [](WorkerLink& link) { return link.send_pages({kPages}, std::vector<uint8_t>(kShard.page_bytes())); };
  const auto earlier = connect(), broken = connect();
  expect(stores(*earlier), "a link of a generation stores pages");
  std::vector<float> none;
  broken->send_keys({}, {}, 1);
  expect(!broken->receive(none, &kNoAbort) && !earlier->is_broken(), "keys without a step break their link alone");
  const auto later = connect();
  expect(stores(*later) && !stores(*earlier), "the next link ends the generation of a broken one");
}

/** The sequence of the step keeps tokens in slots (kind 0), selects tokens (1) or reads some pages (2). */
template <class Value>
void add_sparse_lie(ShardStep& step, int kind, const Value& value) {
  const auto number = [&](int64_t truth, std::initializer_list<int64_t> lies) { return static_cast<int32_t>(value(truth, lies)); };
  const int32_t sequence = number(0, {1, -1}), in_group = number(0, {1, 70});
  const std::vector<int32_t> pages = {kPages + 20 - number(1, {3, kPages + 40, -21}), kPages + 18}, starts = {0, number(1, {2, 3, -1}), 2}, states = {number(kPages + 17, {-1, INT32_MAX, kPages + 18})};
  const std::vector<int32_t> budget = {number(8, {0, INT32_MAX}), 12};
  const int32_t decay = 0x3f000000;
  switch (kind) {
    case 0:
      step.groups[0].blocks.clear();
      step.groups[0].block_start = {0, 0};
      step.groups[0].changed.clear();
      step.groups[0].pages.clear();
      step.sparse.slots.push_back({{sequence, in_group, number(3, {0, -1, 1 << 21}), 2, number(decay, {0, -1, 0x7f800000}), number(1, {2})}, {pages, starts, states, {number(5, {-1, 11, 12}), 9}, budget}});
      break;
    case 1:
      step.sparse.selections.push_back({{sequence, in_group, number(2, {0, 3}), 2, 0, number(5, {4, 0}), 0}, {pages, starts, states, budget}});
      break;
    default:
      step.sparse.page_selections.push_back({{sequence, in_group, number(0, {9, 10}), number(2, {1, INT32_MAX}), number(decay, {0, 0x40000000})}, {{states[0], kPages + 16}}});
  }
}

/** Positions beyond the largest number are refused, also of a sequence that lists no blocks. */
void refuse_late_positions() {
  ShardStep step;
  step.row_start = {0, 3};
  step.positions = {INT32_MAX - 3};
  step.groups.emplace_back();
  step.groups[0].layers = 2;
  step.groups[0].first_block = {0};
  add_sparse_lie(step, 0, [](int64_t truth, std::initializer_list<int64_t>) { return truth; });
  expect(ShardStep().decode(step.encode(), 3, kPages), "the last positions are valid");
  step.positions[0]++;
  expect(!ShardStep().decode(step.encode(), 3, kPages), "later positions are refused");
}

/** A step and its calls with valid checksums, of which one field lies. The worker answers or closes the connection. */
void send_lie(const Shard& shard, std::mt19937& random) {
  const std::atomic<bool> ended{false};
  const auto connection = open_connection({"127.0.0.1", shard.worker->port()}, Transport::tcp, key(), kShard, 2000, ended);
  if (connection == nullptr) return;
  int field = 0;
  const int lying_field = static_cast<int>(random() % 60);
  ModelWorkerHello own;
  own.owner = *link_owner({"127.0.0.1", shard.worker->port()});
  own.checksum = worker_checksum(own) + (random() % 20 == 0 ? 1 : 0);
  if (!connection->send(&own, sizeof own, in_milliseconds(2000), ended)) return;
  const auto value = [&](int64_t truth, std::initializer_list<int64_t> lies) {
    return field++ == lying_field ? *(lies.begin() + random() % lies.size()) : truth;
  };
  ShardStep step;
  step.row_start = {0, 2};
  step.positions = {static_cast<int32_t>(value(300, {319, 10000, INT32_MAX, -5}))};
  ShardGroup group;
  group.layers = static_cast<int>(value(kLayers, {1, 0, 4000}));
  group.window = static_cast<int>(value(kNoWindow, {40, 1, -1}));
  group.first_block = {static_cast<int32_t>(value(0, {5, 9, -1, INT32_MAX}))};
  for (int b = 0; b < 10; b++) group.blocks.push_back(b);
  group.blocks[static_cast<size_t>(random() % 10)] = static_cast<int32_t>(value(9, {-1, kBlocks + kOtherPages, INT32_MAX}));
  group.block_start = {0, static_cast<int32_t>(value(10, {5, 11, -1}))};
  group.changed = group.blocks;
  for (int p = 0; p < 10 * kLayers; p++) group.pages.push_back(kPages + p);  // no page of the steps
  group.pages[static_cast<size_t>(random() % group.pages.size())] = static_cast<int32_t>(value(kPages + 7, {-1, kPages + kOtherPages, INT32_MAX}));
  step.groups = {group};
  if (random() % 2 == 0) add_sparse_lie(step, static_cast<int>(random() % 3), value);
  std::vector<int32_t> words = step.encode();
  if (value(0, {1}) == 1) words[random() % words.size()] = static_cast<int32_t>(random());
  const std::vector<uint8_t> body(static_cast<size_t>(2 * 4 * 16 * 2));
  for (int i = 0; i < 5; i++) {
    WorkerFrame frame = {};
    frame.kind = static_cast<WorkerFrameKind>(value(i == 0 ? 1 : i % 2 == 1 ? 2 : 3, {1, 2, 3, 9}));
    frame.step = 1;
    frame.call = static_cast<int32_t>(value((i - 1) / 2, {1, -1}));
    frame.layer = static_cast<int32_t>(value((i - 1) / 2, {kLayers, -1}));
    frame.group = static_cast<int32_t>(value(0, {1, -1}));
    frame.heads = static_cast<int32_t>(value(4, {3, 0, -4, 6, 1 << 20}));
    frame.rows = static_cast<int32_t>(value(2, {3, 0, -1, 1 << 20}));
    frame.form = static_cast<AttentionForm>(value(0, {1, 2, 1 << 20}));
    frame.slopes = static_cast<uint32_t>(value(0, {4, 5}));
    frame.words = frame.kind == WorkerFrameKind::step ? static_cast<uint32_t>(words.size()) : 0;
    frame.bytes = static_cast<uint64_t>(value(static_cast<int64_t>(body.size()), {0, -1, 1 << 30}));
    frame.checksum = worker_checksum(frame);
    MessageWriter message(*connection, Isa::portable, in_milliseconds(2000), ended);
    message.head(frame);
    if (frame.kind == WorkerFrameKind::step) message.add(words);
    if (frame.kind == WorkerFrameKind::query) message.add(std::vector<float>(frame.slopes, 0.5f));
    if (frame.kind != WorkerFrameKind::step) message.add(body);
    if (!message.close()) break;
  }
  // The worker reads what was sent before the connection ends.
  connection->await_bytes(1);
  connection->shut_down();
}

/**
 * A frame of pages of which one field lies, on a connection of its own: the worker stores its pages, or stores nothing
 * and closes the connection.
 */
void send_lying_pages(const Shard& shard, std::mt19937& random) {
  const std::atomic<bool> ended{false};
  const auto connection = open_connection({"127.0.0.1", shard.worker->port()}, Transport::tcp, key(), kShard, 2000, ended);
  if (connection == nullptr) return;
  ModelWorkerHello own;
  own.owner = *link_owner({"127.0.0.1", shard.worker->port()});
  own.checksum = worker_checksum(own);
  WorkerHello hello;
  if (!connection->send(&own, sizeof own, in_milliseconds(2000), ended) || !connection->receive(&hello, sizeof hello, in_milliseconds(2000), ended)) return;
  const int lie = static_cast<int>(random() % 7);
  std::vector<int32_t> pages = {kPages, lie == 1 ? kPages + kOtherPages : lie == 2 ? -1 : kPages + 1};
  const std::vector<uint8_t> bytes(2 * kShard.page_bytes());
  WorkerFrame frame = {};
  frame.kind = WorkerFrameKind::pages;
  frame.step = lie == 6 ? 2 : 1;
  frame.rows = lie == 3 ? 3 : 2;
  frame.words = lie == 4 ? 1 : 2;
  frame.bytes = lie == 5 ? bytes.size() - 1 : bytes.size();
  frame.checksum = worker_checksum(frame);
  MessageWriter message(*connection, Isa::portable, in_milliseconds(2000), ended);
  message.head(frame);
  message.add(pages);
  message.add(bytes);
  if (!message.close()) return;
  AttentionFrame answer;
  const bool stored = connection->receive(&answer, sizeof answer, in_milliseconds(5000), ended) && is_valid_worker_header(answer) && answer.bytes == 0;
  expect(stored == (lie == 0), "pages of a valid frame are stored, and no others");
}

/** Steps of these numbers, on a connection of their own; the pages after each are answered if the worker has accepted it. Returns how many it accepts. */
int accepted_steps(const Shard& shard, std::initializer_list<int> numbers) {
  const std::atomic<bool> ended{false};
  const auto connection = open_connection({"127.0.0.1", shard.worker->port()}, Transport::tcp, key(), kShard, 2000, ended);
  ModelWorkerHello own;
  own.owner = *link_owner({"127.0.0.1", shard.worker->port()});
  own.checksum = worker_checksum(own);
  WorkerHello hello;
  if (connection == nullptr || !connection->send(&own, sizeof own, in_milliseconds(2000), ended) || !connection->receive(&hello, sizeof hello, in_milliseconds(2000), ended)) return -1;
  ShardStep step;
  step.row_start = {0, 1};
  step.positions = {0};
  ShardGroup group;
  group.layers = kLayers;
  group.window = kNoWindow;
  group.first_block = {0};
  group.blocks = group.changed = {0};
  group.block_start = {0, 1};
  for (int layer = 0; layer < kLayers; layer++) group.pages.push_back(kPages + layer);  // no page of the steps
  step.groups = {group};
  const std::vector<int32_t> words = step.encode();
  const std::vector<uint8_t> page(kShard.page_bytes());
  const auto send = [&](WorkerFrame frame, const std::vector<int32_t>& list, const std::vector<uint8_t>& bytes) {
    frame.words = static_cast<uint32_t>(list.size());
    frame.bytes = bytes.size();
    frame.rows = 1;
    frame.checksum = worker_checksum(frame);
    MessageWriter message(*connection, Isa::portable, in_milliseconds(2000), ended);
    message.head(frame);
    message.add(list);
    if (!bytes.empty()) message.add(bytes);
    return message.close();
  };
  int accepted = 0;
  for (const int number : numbers) {
    WorkerFrame begin = {}, stored = {};
    begin.kind = WorkerFrameKind::step;
    begin.step = number;
    stored.kind = WorkerFrameKind::pages;
    stored.step = accepted + 1;
    AttentionFrame answer;
    if (!send(begin, words, {}) || !send(stored, {kPages}, page) || !connection->receive(&answer, sizeof answer, in_milliseconds(5000), ended)) break;
    accepted++;
  }
  return accepted;
}

/** Prompts of another pool arrive in pages that no step uses; some are cancelled on the way. */
template <class Puller>
void pull_pages(Puller& puller, const Shard& shard, int index, std::mt19937 random) {
  constexpr int kFirst = kPages + 20, kCount = 20;
  const auto source = std::make_shared<KvPool>(Isa::portable, kWhole, kCount);
  const size_t bytes = kShard.page_bytes();
  const auto check_pages = [&](const char* what) {
    // As an attention call, which reads pages while none is written.
    const PagePuller::Call reading(shard.worker->puller());
    for (int page = 0; page < kCount; page++)
      expect(std::memcmp(shard.pool->page(kFirst + page), source->page(page) + bytes * static_cast<size_t>(index), bytes) == 0, what);
  };
  for (int round = 0; round < 30; round++) {
    std::vector<PulledPage> pages;
    for (int page = 0; page < kCount; page++) {
      std::memset(source->page(page), static_cast<int>(random() % 256), kWhole.page_bytes());
      pages.push_back({page, kFirst + (page * 7 + round) % kCount});
    }
    const int pull = puller.pull(source, index, pages);
    if (random() % 3 == 0) puller.cancel(pull);
    else while (!puller.is_done(pull)) std::this_thread::yield();
    expect(puller.is_done(pull), "a pull that ended or was cancelled is done");
  }
  std::vector<PulledPage> pages;
  for (int page = 0; page < kCount; page++) {
    for (size_t i = 0; i < kWhole.page_bytes(); i++) source->page(page)[i] = static_cast<uint8_t>(random());
    pages.push_back({page, kFirst + page});
  }
  const int pull = puller.pull(source, index, pages);
  while (!puller.is_done(pull)) std::this_thread::yield();
  check_pages("a page has its shard");
  // Pages that a receive buffer gets, some of them twice, are pulled on the way.
  const auto queue = std::make_shared<CompletionQueue>([] {});
  std::vector<int32_t> slots, targets;
  for (int page = 0; page < kCount; page++) {
    slots.push_back(page);
    targets.push_back(kFirst + page);
  }
  const auto buffer = std::make_shared<ReceiveBuffer>(source, queue, slots);
  const int received = puller.pull_received(buffer, index, targets);
  std::vector<uint8_t> bytes_of_page(kWhole.page_bytes());
  for (int i = 0; i < 3 * kCount; i++) {
    for (uint8_t& byte : bytes_of_page) byte = static_cast<uint8_t>(random());
    expect(buffer->write(i % kCount, bytes_of_page.data()), "an open buffer is written");
  }
  buffer->complete();
  while (!puller.is_done(received)) std::this_thread::yield();
  check_pages("a received page has its shard");
  puller.cancel(received);
}

/**
 * A worker stands still while a cancelled page and a step are on their way. The step fails there; when the worker goes
 * on, the page arrives before the next step, and the link works.
 */
void stand_still(const Shard& shard, Steps& steps, Transport transport) {
  constexpr StallLimits kShort{std::chrono::milliseconds(20), std::chrono::milliseconds(0)};
  ShardSender sender(std::make_shared<WorkerLink>(Isa::portable, kShard, HostPort{"127.0.0.1", shard.worker->port()}, transport, key(), std::chrono::milliseconds(20000)));
  sender.precede(*shard.link);
  const auto source = std::make_shared<KvPool>(Isa::portable, kWhole, 1);
  std::memset(source->page(0), 77, kWhole.page_bytes());
  const uint8_t* page = shard.pool->page(kPages + kOtherPages - 1);
  {
    const PagePuller::Call still(shard.worker->puller());
    expect(!steps.answers(shard, kShort), "a step without an answer fails");
    expect(shard.link->is_stalled() && !shard.link->is_broken(), "a worker that stands still keeps its link");
    expect(!steps.begins(shard, kShort), "no step begins meanwhile");
  }
  expect(steps.answers(shard, std::nullopt), "the link works when the worker goes on");
  {
    const PagePuller::Call still(shard.worker->puller());
    const uint64_t yields = shard.worker->puller().counts().yields;
    const int pull = sender.pull(source, 0, {{0, kPages + kOtherPages - 1}});
    while (shard.worker->puller().counts().yields == yields) std::this_thread::yield();
    sender.cancel(pull);
    expect(*page != 77, "a cancel does not wait for the worker");
    expect(!steps.begins(shard, kShort), "no step begins before a cancelled page has arrived");
  }
  expect(steps.begins(shard, std::nullopt), "the next step begins");
  const PagePuller::Call reading(shard.worker->puller());
  expect(*page == 77, "the cancelled page has arrived before");
  shard.link->follow(nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  std::mt19937 random(1);
  refuse_late_positions();
  std::vector<Transport> transports = {Transport::shared, Transport::tcp};
  if (std::getenv("KVASIR_IBVERBS") != nullptr) transports.push_back(Transport::rdma);
  for (int round = 0; round < rounds; round++) {
    const Transport transport = transports[round % transports.size()];
    std::vector<std::unique_ptr<Shard>> shards;
    for (int s = 0; s < kShards; s++) shards.push_back(std::make_unique<Shard>(transport));
    Steps steps(static_cast<unsigned>(round));
    stand_still(*shards[0], steps, transport);
    std::thread liar([&shards, seed = random()] {
      std::mt19937 lies(seed);
      for (int i = 0; i < 40; i++) send_lie(*shards[0], lies);
      for (int i = 0; i < 10; i++) send_lying_pages(*shards[0], lies);
    });
    std::thread puller([&shards, seed = random()] { pull_pages(shards[1]->worker->puller().queue(), *shards[1], 1, std::mt19937(seed)); });
    std::thread sender([&shards, transport, seed = random()] {
      ShardSender over(std::make_shared<WorkerLink>(Isa::portable, kShard, HostPort{"127.0.0.1", shards[0]->worker->port()}, transport, key(), std::chrono::milliseconds(20000)));
      pull_pages(over, *shards[0], 0, std::mt19937(seed));
    });
    for (int step = 0; step < 12; step++) steps.run(shards, random() % 4 == 0);
    liar.join();
    puller.join();
    sender.join();
    expect(accepted_steps(*shards[0], {1, 2, 3}) == 3, "steps follow one another");
    expect(accepted_steps(*shards[0], {1, 2, 2}) == 2 && accepted_steps(*shards[0], {1, 3}) == 1, "a step that comes again, or too early, ends its link");
    refuse_other_owners(*shards[0]);
    steps.run(shards, false);
    supersede(*shards[0]);
    end_broken_generation(*shards[0], transport);
    // A worker that ends breaks its link, and the next step fails without an answer.
    shards[1]->worker = nullptr;
    std::vector<float> none;
    expect(!shards[1]->link->receive(none, &kNoAbort), "an ended worker does not answer");
  }
  std::printf("%d rounds, %d bad\n", rounds, bad);
  return bad == 0 ? 0 : 1;
}
