// Stress of remote attention servers, for a thread sanitizer: steps with remote keys run while creditors take blocks
// back, overwrite them, lend them again, run their own steps and change their share. Queries go directly, over TCP and
// over shared memory, and some steps fetch the pages. Argument: rounds. Exits with 1 if the bits of an answered row differ from those of one pool.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "net/message.hpp"
#include "remote/client.hpp"
#include "remote/listener.hpp"
#include "remote/reader.hpp"
#include "remote/remote_attention.hpp"
#include "remote/server.hpp"

using namespace kvasir;

namespace {

constexpr int kRanges = 4, kTokens = kRanges * kRangeTokens, kBlocks = kTokens / kPageTokens + 1, kCreditors = 2, kLoan = 3;
constexpr int kHeads = 4, kRows = 14;

void fill(KvPool& pool, int page, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(2 * static_cast<size_t>(pool.layout.kv_heads) * kPageTokens * pool.layout.head_dim);
  for (float& value : values) value = normal(random);
  write_page(pool.isa, pool.layout, pool.page(page), values.data());
}

/** A creditor. While it is lent, block i of its pool is a copy of the debtor's block i. */
struct Creditor {
  std::shared_ptr<Backend> backend = std::make_shared<Backend>(Isa::portable, 2);
  std::shared_ptr<KvPool> pool;
  RemoteAttentionServer server;
  RemoteAttentionListener listener;
  std::shared_ptr<RemoteAttentionClient> over_tcp, shared;  // clients of the server, over TCP and over shared memory
  std::shared_ptr<RemotePageFetcher> fetcher;               // by which steps of the debtor fetch pages, over shared memory

  Creditor(const KvLayout& layout, Backend& debtor)
      : pool(std::make_shared<KvPool>(Isa::portable, layout, kBlocks)),
        server(backend, pool),
        listener({std::shared_ptr<void>(), &server}, layout, {"127.0.0.1", 0}, Transport::automatic, key()),
        over_tcp(std::make_shared<RemoteAttentionClient>(layout, HostPort{"127.0.0.1", listener.port()}, Transport::tcp, key())),
        shared(std::make_shared<RemoteAttentionClient>(layout, HostPort{"127.0.0.1", listener.port()}, Transport::shared, key())),
        fetcher(std::make_shared<RemotePageFetcher>(std::shared_ptr<Backend>(std::shared_ptr<void>(), &debtor), shared)) {
    for (int block = 0; block < kBlocks; block++) fill(*pool, block, block);
    lend(0, kRanges);
  }
  static HashKey key() {
    HashKey key;
    key.fill(7);
    return key;
  }
  static std::vector<int32_t> blocks(int first_range, int ranges) {
    std::vector<int32_t> all;
    for (int i = first_range * kRangePages; i < (first_range + ranges) * kRangePages; i++) all.push_back(i);
    return all;
  }
  void lend(int first_range, int ranges) { server.lend(kLoan, blocks(first_range, ranges), blocks(first_range, ranges)); }

  /** Takes a range back, overwrites its pages, and lends it again with its contents. */
  void recall(int range) {
    server.take_back(kLoan, blocks(range, 1));
    for (const int32_t block : blocks(range, 1)) std::memset(pool->page(block), 0xff, pool->layout.page_bytes());
    for (const int32_t block : blocks(range, 1)) fill(*pool, block, block);
    lend(range, 1);
  }
  /** Runs a step of its own, which keeps its threads busy for a while. */
  void step(int tasks) {
    const std::lock_guard<std::mutex> lock(backend->busy);
    const StepLock step_lock(*backend);
    std::atomic<int> sum{0};
    backend->pool.run(tasks, [&](int task, int) {
      for (int i = 0; i < 2000; i++) sum += task ^ i;
    });
  }
};

/** Two sequences: the first has `kTokens` keys with some remote ranges, the second is all local. */
struct Debtor {
  KvLayout layout{KvType::bf16, 2, 16};
  Backend backend{Isa::portable, 2};
  KvPool pool{Isa::portable, layout, kBlocks};
  std::vector<int32_t> pages, blocks_with_remote;
  std::vector<uint8_t> query;
  std::vector<float> whole, out;
  std::vector<uint8_t> scratch;
  RemoteAttention remote;
  int32_t abort = 0;
  const int32_t row_start[3] = {0, kRows, kRows + 1};
  static constexpr int kAll = kRows + 1;

  explicit Debtor(std::chrono::milliseconds deadline) : remote(deadline) {
    for (int block = 0; block < kBlocks; block++) {
      fill(pool, block, block);
      pages.push_back(block);
    }
    std::mt19937 random(77);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    query.resize(query_bytes(Isa::portable, layout.type, kHeads, layout.head_dim, kAll));
    std::vector<float> row(static_cast<size_t>(kHeads) * layout.head_dim);
    for (int token = 0; token < kAll; token++) {
      for (float& value : row) value = normal(random);
      write_query_row(Isa::portable, layout.type, kHeads, layout.head_dim, query.data(), token, row.data());
    }
    out.resize(static_cast<size_t>(kAll) * row.size());
    scratch.resize(attention_scratch_bytes(Isa::portable, layout, kHeads, backend.pool.size(), kAll, kTokens + 64));
    const auto sequences = listed(pages.data());
    run_attention(backend.pool, args(sequences), query.data(), {out.data(), nullptr, nullptr}, scratch.data());
    whole = out;
  }

  std::vector<AttentionSequence> listed(const int32_t* first) const { return {{0, kRows, kTokens, first, 0}, {kRows, 1, kTokens - 100, pages.data(), 0}}; }
  AttentionArgs args(const std::vector<AttentionSequence>& sequences) {
    return {Isa::portable, layout, pool.data(), pages.data(), 1, 0, kHeads, 0.25f, sequences.data(), 2, kAll};
  }
  bool same(int row, int rows) const {
    const size_t columns = static_cast<size_t>(kHeads) * layout.head_dim;
    return std::memcmp(&out[row * columns], &whole[row * columns], sizeof(float) * rows * columns) == 0;
  }

  /**
   * Runs a step of a few layers. `endpoints` has one entry per range, null for local ranges. False if the bits of
   * answered rows differ.
   */
  bool step(const std::vector<std::shared_ptr<RemoteAttentionEndpoint>>& endpoints, bool& has_failed) {
    blocks_with_remote = pages;
    StepView view;
    view.row_start = {row_start, 3};
    std::vector<std::vector<int32_t>> lists;
    for (int range = 0; range < kRanges; range++) lists.push_back(Creditor::blocks(range, 1));
    for (int range = 0; range < kRanges; range++) {
      if (endpoints[range] == nullptr) continue;
      std::fill_n(blocks_with_remote.begin() + range * kRangePages, kRangePages, kRemoteBlock);
      view.remote.push_back({0, 0, range * kRangePages, endpoints[range], kLoan, {lists[range].data(), lists[range].size()}});
    }
    const std::vector<std::vector<AttentionSequence>> groups = {listed(blocks_with_remote.data())};
    const StepLock step_lock(backend);
    uint8_t failed[2] = {0, 0};
    remote.begin(view, groups, failed);
    bool good = true;
    for (int layer = 0; layer < 3; layer++) {
      std::fill(out.begin(), out.end(), NAN);
      const AttentionArgs call = args(groups[0]);
      if (!remote.any(0)) return true;
      remote.run({call, query.data(), {out.data(), nullptr, nullptr}, 0, backend, scratch.data(), &abort});
      if (remote.aborted()) return true;
      has_failed = failed[0] != 0;
      good = good && same(kRows, 1) && (has_failed || same(0, kRows));
    }
    return good;
  }
};

/** Does not own it. */
std::shared_ptr<RemoteAttentionEndpoint> endpoint_of(Creditor& creditor) { return {std::shared_ptr<void>(), &creditor.server}; }
std::shared_ptr<RemoteAttentionEndpoint> endpoint_of(Creditor& creditor, unsigned transport) {
  if (transport % 4 == 3) return creditor.fetcher;
  return transport % 4 == 0 ? endpoint_of(creditor) : transport % 4 == 1 ? creditor.over_tcp : creditor.shared;
}

/** Makes it a query of two rows over the first range, under this loan. */
void fill_query(RemoteQuery& query, const KvLayout& layout, int loan) {
  query.layout = layout;
  query.heads = kHeads;
  query.rows = 2;
  query.start = kTokens;
  query.query.resize(query_bytes(Isa::portable, layout.type, kHeads, layout.head_dim, 2));
  query.slopes.assign(kHeads, 0.5f);
  query.keys = {{loan, 0, kRangePages}};
  query.blocks = Creditor::blocks(0, 1);
  query.nodes = {{0, 1}};
}

/** True if a loan with a share is served beside a step while one without a share waits, and the times are those of each loan. */
bool rests_are_of_loans(Creditor& creditor, const KvLayout& layout) {
  constexpr int kOther = kLoan + 1;
  creditor.server.take_back(kLoan, Creditor::blocks(0, 1));
  creditor.server.lend(kOther, Creditor::blocks(0, 1), Creditor::blocks(0, 1));
  creditor.server.set_cpu_share(kLoan, 0);
  creditor.server.set_cpu_share(kOther, 500);
  const auto post = [&](int loan, int range) {
    const auto query = std::make_shared<RemoteQuery>();
    fill_query(*query, layout, loan);
    query->keys = {{loan, range * kRangePages, kRangePages}};
    query->blocks = Creditor::blocks(range, 1);
    query->nodes = {{range, 1}};
    query->answered = std::make_shared<EventCount>();
    query->open();
    creditor.server.post(query);
    return query;
  };
  creditor.backend->threads_lock.lock();
  const auto waits = post(kLoan, 1), served = post(kOther, 0);
  for (uint32_t seen = served->answered->epoch(); served->is_open(); seen = served->answered->epoch())
    if (served->is_open()) served->answered->wait(seen);
  const bool waited = waits->is_open();
  creditor.backend->threads_lock.unlock();
  for (uint32_t seen = waits->answered->epoch(); waits->is_open(); seen = waits->answered->epoch())
    if (waits->is_open()) waits->answered->wait(seen);
  const auto other = creditor.server.counts_of(kOther);
  creditor.server.take_back(kOther, Creditor::blocks(0, 1));
  creditor.lend(0, 1);
  return waited && served->state.load() == RemoteQuery::State::answered && waits->state.load() == RemoteQuery::State::answered && other.queries == 1 &&
         other.nanoseconds > 0 && other.nanoseconds < creditor.server.counts().nanoseconds;
}

/** The bytes of a query frame for one range. */
std::vector<uint8_t> frame_of(const KvLayout& layout) {
  RemoteQuery query;
  fill_query(query, layout, kLoan);
  SocketPair pair = loopback_pair();
  const std::atomic<bool> never{false};
  send_query(pair.sender, query, 1, in_milliseconds(5000), never);
  std::vector<uint8_t> bytes(sizeof(QueryHeader) + 4 * kHeads + sizeof(QueryKeys) + 4 * kRangePages + sizeof(QueryNode) + query.query.size() + 8);
  pair.receiver.receive(bytes.data(), bytes.size(), in_milliseconds(5000), never);
  return bytes;
}

/**
 * Sends corrupted and truncated frames: the listener ends the connection and serves the next. Returns the number of
 * answers.
 */
int send_broken(const Creditor& creditor, const KvLayout& layout, int count) {
  const std::vector<uint8_t> frame = frame_of(layout);
  const std::atomic<bool> never{false};
  std::mt19937 chance(9);
  int answered = 0;
  for (int i = 0; i < count; i++) {
    const auto connection = open_connection({"127.0.0.1", creditor.listener.port()}, i % 8 < 4 ? Transport::tcp : Transport::shared, Creditor::key(), layout, 5000, never);
    if (connection == nullptr) return count;
    std::vector<uint8_t> sent = frame;
    if (i % 4 == 3) sent.resize(chance() % frame.size());
    if (i > 0 && i % 4 != 3) sent[chance() % (i % 2 == 0 ? sizeof(QueryHeader) : sent.size())] ^= static_cast<uint8_t>(1 << chance() % 8);
    connection->send(sent.data(), sent.size(), in_milliseconds(5000), never);
    if (i % 4 == 3) continue;
    AnswerHeader header;
    answered += receive_answer_header(*connection, header, never) && header.answered != 0;
  }
  return answered;
}

/** True if the header of a query is refused before its body is received. */
bool is_refused_by_header(QueryHeader header, const KvLayout& layout) {
  const std::atomic<bool> never{false};
  header.magic = kQueryMagic;
  header.version = kQueryWireVersion;
  header.sequence = 1;
  header.query_bytes = query_bytes(static_cast<Isa>(header.isa), layout.type, header.heads, layout.head_dim, header.rows);
  header.checksum = header_checksum(header, 11);
  SocketPair pair = loopback_pair();
  const uint8_t body = 1;
  pair.sender.send(&header, sizeof header, in_milliseconds(5000), never);
  pair.sender.send(&body, 1, in_milliseconds(5000), never);
  uint8_t left = 0;
  return receive_query(pair.receiver, layout, 1, 1000, never) == nullptr && pair.receiver.receive(&left, 1, in_milliseconds(1000), never) && left == body;
}

/** A header that states half a gigabyte of rows without a node. */
bool refuses_large_query(const KvLayout& layout) {
  QueryHeader header = {};
  header.isa = static_cast<int32_t>(Isa::portable);
  header.heads = 256;
  header.rows = 1 << 16;
  return is_refused_by_header(header, layout);
}

/** A small query of instructions above those that the process may use. */
bool refuses_other_instructions(const KvLayout& layout) {
  QueryHeader header = {};
  header.isa = static_cast<int32_t>(detect_isa()) + 1;
  header.heads = 1;
  header.rows = 1;
  return is_refused_by_header(header, layout);
}

/** Keeps queries open, or has no memory for them. */
struct Holding final : RemoteAttentionEndpoint {
  bool lacks_memory = false;
  std::mutex mutex;
  EventCount posted;
  std::vector<std::shared_ptr<RemoteQuery>> held;

  void post(std::shared_ptr<RemoteQuery> query) override {
    if (lacks_memory) throw std::bad_alloc();
    {
      std::lock_guard<std::mutex> lock(mutex);
      held.push_back(std::move(query));
    }
    posted.notify();
  }
  void close() override {}
  /** Waits until so many are held, for 20 s at most. */
  bool holds(size_t count) {
    for (int i = 0; i < 2000; i++) {
      const uint32_t seen = posted.epoch();
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (held.size() >= count) return held.size() == count;
      }
      posted.wait_for(seen, std::chrono::milliseconds(10));
    }
    return false;
  }
};

/** Sends queries for pages to an endpoint that does not answer. */
struct PageQueries {
  KvLayout layout{KvType::f32, 64, 256};
  std::shared_ptr<Holding> endpoint = std::make_shared<Holding>();
  RemoteAttentionListener listener{endpoint, layout, {"127.0.0.1", 0}, Transport::tcp, Creditor::key()};
  const std::atomic<bool> never{false};
  std::unique_ptr<Connection> connection = open_connection({"127.0.0.1", listener.port()}, Transport::tcp, Creditor::key(), layout, 5000, never);

  bool send(uint32_t sequence, int blocks) {
    RemoteQuery query;
    query.layout = layout;
    query.heads = layout.kv_heads;
    query.rows = 1;
    query.query.resize(query_bytes(Isa::portable, layout.type, query.heads, layout.head_dim, 1));
    query.keys = {{kLoan, 0, blocks}};
    query.blocks.resize(blocks);
    return send_query(*connection, query, sequence, in_milliseconds(5000), never);
  }
};

/** A query whose answer has no memory waits until the answer of the one before it is sent. */
bool bounds_open_answers() {
  PageQueries queries;
  const int more_than_half = static_cast<int>(kAnswerBytesMost / queries.layout.page_bytes()) / 2 + 1;
  if (!queries.send(1, more_than_half) || !queries.send(2, more_than_half) || !queries.endpoint->holds(1)) return false;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (!queries.endpoint->holds(1)) return false;
  queries.endpoint->held[0]->end(RemoteQuery::State::refused);
  return queries.endpoint->holds(2);
}

/** Without memory for a query its connection ends, and the listener serves others. */
bool survives_lack_of_memory() {
  PageQueries queries;
  queries.endpoint->lacks_memory = true;
  AnswerHeader header;
  if (!queries.send(1, 1) || receive_answer_header(*queries.connection, header, queries.never)) return false;
  return open_connection({"127.0.0.1", queries.listener.port()}, Transport::tcp, Creditor::key(), queries.layout, 5000, queries.never) != nullptr;
}

/** A reader of the pages of a server of this process. */
bool reader_outlives_server(Debtor& debtor) {
  auto pool = std::make_shared<KvPool>(Isa::portable, debtor.layout, kBlocks);
  auto server = std::make_shared<RemoteAttentionServer>(std::make_shared<Backend>(Isa::portable, 1), pool);
  RemotePageReader reader({std::shared_ptr<void>(), &debtor.backend}, server);
  server.reset();
  const auto query = std::make_shared<RemoteQuery>();
  fill_query(*query, debtor.layout, kLoan);
  query->answered = std::make_shared<EventCount>();
  query->open();
  reader.post(query);
  return pool.use_count() == 1 && query->state.load() == RemoteQuery::State::refused;
}

int run(int rounds) {
  Debtor debtor(std::chrono::seconds(20)), hasty(std::chrono::milliseconds(30));
  std::vector<std::unique_ptr<Creditor>> creditors;
  for (int i = 0; i < kCreditors; i++) creditors.push_back(std::make_unique<Creditor>(debtor.layout, debtor.backend));
  int bad = 0, answered = 0, late = 0, aborted = 0;
  bool has_failed = false;
  const auto expect = [&](bool holds, const char* what) {
    bad += !holds;
    if (!holds) std::fprintf(stderr, "not so: %s\n", what);
  };

  const auto assign = [&](std::mt19937& chance) {
    std::vector<std::shared_ptr<RemoteAttentionEndpoint>> endpoints;
    for (int range = 0; range < kRanges; range++) {
      const unsigned place = chance() % (kCreditors + 1);
      endpoints.push_back(place == kCreditors ? nullptr : endpoint_of(*creditors[place], chance()));
    }
    return endpoints;
  };

  expect(refuses_large_query(debtor.layout), "a query larger than its partials may be is refused");
  expect(refuses_other_instructions(debtor.layout), "a query of instructions that this process may not use is refused");
  expect(bounds_open_answers(), "a query waits for memory for its answer");
  expect(survives_lack_of_memory(), "a query without memory ends its connection alone");
  expect(reader_outlives_server(debtor), "a reader of a server that has ended holds no memory of it, and refuses");
  std::mt19937 chance(1);
  for (int round = 0; round < 10; round++) expect(debtor.step(assign(chance), has_failed) && !has_failed, "undisturbed, all queries are answered");

  // A creditor in an endless step with a share of 0 answers nothing.
  creditors[0]->server.set_cpu_share(kLoan, 0);
  creditors[0]->backend->threads_lock.lock();
  const std::vector<std::shared_ptr<RemoteAttentionEndpoint>> first = {endpoint_of(*creditors[0]), endpoint_of(*creditors[1]), nullptr, nullptr};
  expect(hasty.step(first, has_failed) && has_failed, "a server that answers nothing fails its sequence alone");
  creditors[0]->backend->threads_lock.unlock();
  expect(rests_are_of_loans(*creditors[0], debtor.layout), "a loan without a share delays no query of another loan");
  creditors[0]->server.set_cpu_share(kLoan, 300);

  std::atomic<bool> over{false};
  std::vector<std::thread> owners;
  for (int i = 0; i < kCreditors; i++) {
    owners.emplace_back([&, i] {
      std::mt19937 own(i + 10);
      while (!over) {
        if (own() % 8 == 0) creditors[i]->recall(static_cast<int>(own() % kRanges));
        creditors[i]->step(static_cast<int>(own() % 6));
        creditors[i]->server.set_cpu_share(kLoan, static_cast<int>(own() % 11) * 100);
        std::this_thread::yield();
      }
    });
  }
  std::thread impatient([&] {
    for (std::mt19937 own(5); !over; std::this_thread::sleep_for(std::chrono::milliseconds(own() % 120))) {
      __atomic_store_n(&debtor.abort, 1, __ATOMIC_RELAXED);
      std::this_thread::yield();
      __atomic_store_n(&debtor.abort, 0, __ATOMIC_RELAXED);
    }
  });
  for (int round = 0; round < rounds; round++) {
    has_failed = false;
    expect(debtor.step(assign(chance), has_failed), "answered rows have the bits of one pool");
    (debtor.remote.aborted() ? aborted : has_failed ? late : answered)++;
  }
  over = true;
  for (std::thread& owner : owners) owner.join();
  impatient.join();
  debtor.abort = 0;

  expect(send_broken(*creditors[0], debtor.layout, 40) == 1, "malformed frames are not answered, a valid one is");

  // A server that is closed during a query refuses it, and so does an unknown endpoint.
  for (int round = 0; round < 5; round++) {
    auto dying = std::make_unique<Creditor>(debtor.layout, debtor.backend);
    const std::vector<std::shared_ptr<RemoteAttentionEndpoint>> endpoints = {endpoint_of(*dying), endpoint_of(*dying, round), nullptr, endpoint_of(*creditors[1])};
    std::thread closes([&] { endpoint_of(*dying, round / 2)->close(); });
    expect(debtor.step(endpoints, has_failed), "a server that is closed during a query");
    closes.join();
    dying->server.close();
    expect(debtor.step(endpoints, has_failed) && has_failed, "a server that is closed refuses");
  }
  creditors[1]->server.set_cpu_share(kLoan, 1000);
  expect(debtor.step({nullptr, nullptr, nullptr, endpoint_of(*creditors[1])}, has_failed) && !has_failed, "earlier rounds leave no state");
  std::printf("%d rounds, %d bad\n", rounds, bad);
  if (std::getenv("KVASIR_VERBOSE") != nullptr) std::printf("%d answered, %d not, %d aborted\n", answered, late, aborted);
  return bad == 0 ? 0 : 1;
}

}  // namespace

int main(int, char** arguments) {
  // The pools are portable, and so every other instruction set is one that this process may not use.
  setenv("KVASIR_ISA", "portable", 1);
  return run(std::atoi(arguments[1]));
}
