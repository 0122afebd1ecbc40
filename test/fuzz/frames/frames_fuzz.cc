// The fuzz target of frames between processes: handshakes, pages, remote attention and attention workers. An input
// chooses a reader and the fields of its frames; checksums are valid in most inputs, so that later checks are reached.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "remote/query_frames.hpp"
#include "remote/server.hpp"
#include "transfer/page_receiver.hpp"
#include "workers/attention_worker.hpp"

using namespace kvasir;

namespace {

constexpr KvLayout kLayout{KvType::bf16, 2, 8};
constexpr int kPages = 64, kLoan = 3, kSlots = 8;
constexpr size_t kBytesMost = size_t{1} << 18;  // of one message
const std::atomic<bool> kNotEnded{false};

HashKey key() {
  HashKey key;
  key.fill(5);
  return key;
}

/** The fields of an input; zero after its end. */
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  uint8_t byte() { return at_ < end_ ? *at_++ : 0; }
  template <class T>
  T raw() {
    T value = {};
    fill(&value, sizeof value);
    return value;
  }
  void fill(void* to, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) static_cast<uint8_t*>(to)[i] = byte();
  }
  bool chance(int of) { return byte() % of == 0; }
  /** Mostly a small number, sometimes one at a limit or any. */
  int32_t number(int usual) {
    static constexpr int32_t kLimits[] = {-1, 0, INT32_MAX, INT32_MIN, 1 << 16, 1 << 20, 1 << 24, 1 << 30};
    const uint8_t how = byte();
    if (how < 236) return byte() % usual;
    return how < 248 ? kLimits[how % 8] : raw<int32_t>();
  }
  bool is_empty() const { return at_ == end_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

/** Receives the given bytes and discards what is sent. */
class MemoryConnection final : public Connection {
 public:
  explicit MemoryConnection(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}
  Transport transport() const override { return Transport::tcp; }
  void shut_down() const override {}
  int64_t receive_parts(const iovec* parts, int count) const override {
    int64_t got = 0;
    for (int i = 0; i < count; i++) {
      const size_t bytes = std::min(parts[i].iov_len, bytes_.size() - at_);
      if (bytes > 0) std::memcpy(parts[i].iov_base, bytes_.data() + at_, bytes);
      at_ += bytes;
      got += static_cast<int64_t>(bytes);
    }
    return got;
  }
  int64_t send_parts(const iovec* parts, int count, bool) const override {
    int64_t sent = 0;
    for (int i = 0; i < count; i++) sent += static_cast<int64_t>(parts[i].iov_len);
    return sent;
  }
  bool is_readable() const override { return true; }
  bool spin_until_readable() const override { return true; }
  void await_bytes(size_t) const override {}

 protected:
  bool await(Ready, Deadline, const std::atomic<bool>&) const override { return true; }

 private:
  const std::vector<uint8_t> bytes_;
  mutable size_t at_ = 0;
};

/** A message, its body closed by a checksum that is valid unless the input says otherwise. */
class Message {
 public:
  template <class Header>
  void head(const Header& header) {
    append(&header, sizeof header);
  }
  /** The list's bytes come from the input. */
  void body(Input& in, uint64_t bytes) {
    std::vector<uint8_t> list(static_cast<size_t>(std::min<uint64_t>(bytes, kBytesMost)));
    in.fill(list.data(), std::min(list.size(), in.left()));
    add(list.data(), list.size());
  }
  void add(const void* data, size_t bytes) {
    sum_ = checksum(Isa::portable, data, bytes, sum_);
    append(data, bytes);
  }
  void close(Input& in) {
    if (in.chance(16)) sum_ ^= 1;
    append(&sum_, sizeof sum_);
    sum_ = kBodySeed;
  }
  void append(const void* data, size_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
  }
  std::vector<uint8_t>& bytes() { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
  uint64_t sum_ = kBodySeed;
};

/** Flips a bit or cuts the end, in few inputs. */
void damage(Input& in, std::vector<uint8_t>& bytes) {
  if (bytes.empty() || !in.chance(12)) return;
  const size_t at = in.raw<uint32_t>() % bytes.size();
  if (in.chance(2)) bytes.resize(at);
  else bytes[at] ^= static_cast<uint8_t>(1 << (in.byte() % 8));
}

/** The bytes of the input as they are. */
std::vector<uint8_t> rest_of(Input& in) {
  std::vector<uint8_t> bytes(in.left());
  in.fill(bytes.data(), bytes.size());
  return bytes;
}

void fuzz_handshakes(Input& in) {
  const bool sends = in.chance(2);
  bool rdma = in.chance(2);
  Hello hello;
  hello.offers_rdma = in.byte();
  in.fill(hello.challenge.data(), hello.challenge.size());
  Message message;
  if (!in.chance(4)) message.head(hello);
  const std::vector<uint8_t> rest = rest_of(in);
  message.append(rest.data(), rest.size());
  const MemoryConnection connection(std::move(message.bytes()));
  // An input cannot have the proof of a key.
  const HandshakeResult result = sends ? handshake_as_sender(connection, key(), kLayout, kNever, kNotEnded, &rdma)
                                       : handshake_as_receiver(connection, key(), kLayout, kNever, kNotEnded, &rdma);
  if (result == HandshakeResult::done) std::abort();
}

struct LendingWorld {
  std::shared_ptr<Backend> backend = std::make_shared<Backend>(Isa::portable, 2);
  std::shared_ptr<KvPool> pool = std::make_shared<KvPool>(Isa::portable, kLayout, kPages);
  RemoteAttentionServer server{backend, pool};
  LendingWorld() {
    std::memset(pool->data(), 0, kPages * kLayout.page_bytes());
    std::vector<int32_t> blocks;
    for (int block = 0; block < kPages; block++) blocks.push_back(block);
    server.lend(kLoan, blocks, blocks);
  }
};

void fuzz_queries(Input& in) {
  static LendingWorld world;
  QueryHeader header;
  header.sequence = in.chance(20) ? in.raw<uint32_t>() : 1;
  header.isa = in.chance(20) ? in.number(5) : static_cast<int32_t>(world.pool->isa);
  header.heads = in.chance(2) ? kLayout.kv_heads : in.number(9);
  header.layer = in.number(2);
  header.rows = in.number(20);
  header.start = in.number(256);
  header.scale = in.chance(4) ? in.raw<float>() : 0.25f;
  header.softcap = in.chance(4) ? in.raw<float>() : 0;
  header.slopes = in.chance(8) ? static_cast<uint32_t>(in.number(9)) : in.chance(2) ? static_cast<uint32_t>(header.heads) : 0;
  header.keys = static_cast<uint32_t>(in.number(3));
  header.blocks = static_cast<uint32_t>(in.number(2 * kRangePages + 1));
  header.nodes = static_cast<uint32_t>(in.number(4));
  const bool has_shape = header.heads > 0 && header.heads < 1 << 12 && header.rows > 0 && header.rows < 1 << 16;
  header.query_bytes = has_shape && !in.chance(20) ? query_bytes(Isa::portable, kLayout.type, header.heads, kLayout.head_dim, header.rows) : in.raw<uint64_t>();
  header.checksum = header_checksum(header, 11) ^ (in.chance(32) ? 1 : 0);
  Message message;
  message.head(header);
  message.body(in, uint64_t{header.slopes} * sizeof(float));
  int32_t next = 0;
  for (uint32_t i = 0; i < std::min<uint32_t>(header.keys, 8); i++) {
    const uint32_t gap = in.chance(4) ? static_cast<uint32_t>(in.number(kRangePages)) : 0;
    const QueryKeys keys = {in.chance(20) ? in.number(5) : kLoan, static_cast<int32_t>(static_cast<uint32_t>(next) + gap), in.chance(3) ? in.number(2 * kRangePages) : static_cast<int32_t>(std::min<uint32_t>(header.blocks, 1 << 20))};
    next = static_cast<int32_t>(static_cast<uint32_t>(keys.first_block) + static_cast<uint32_t>(keys.blocks));
    message.add(&keys, sizeof keys);
  }
  for (uint32_t i = 0; i < std::min<uint32_t>(header.blocks, 1 << 16); i++) {
    const int32_t block = in.chance(40) ? in.number(kPages + 4) : static_cast<int32_t>(i) % kPages;
    message.add(&block, sizeof block);
  }
  for (uint32_t i = 0; i < std::min<uint32_t>(header.nodes, 64); i++) {
    const QueryNode node = {in.number(2), in.chance(3) ? in.number(4) : 1};
    message.add(&node, sizeof node);
  }
  message.body(in, header.query_bytes);
  message.close(in);
  damage(in, message.bytes());
  const MemoryConnection connection(std::move(message.bytes()));
  const std::shared_ptr<RemoteQuery> query = receive_query(connection, kLayout, 1, 1000, kNotEnded);
  if (query == nullptr) return;
  query->answered = std::make_shared<EventCount>();
  query->open();
  world.server.post(query);
  while (query->is_open()) {
    const uint32_t seen = query->answered->epoch();
    if (query->is_open()) query->answered->wait(seen);
  }
}

void fuzz_answers(Input& in) {
  RemoteQuery query;
  query.layout = kLayout;
  query.heads = 2;
  query.rows = 1 + in.byte() % 4;
  query.nodes = {{0, 1}, {1, 1}};
  query.open();
  AnswerHeader header;
  header.sequence = 1;
  header.answered = in.byte() % 3;
  header.bytes = in.chance(4) ? static_cast<uint64_t>(in.number(4096)) : header.answered != 0 ? query.bytes_back() : 0;
  header.checksum = header_checksum(header, 13);
  Message message;
  message.head(header);
  message.body(in, header.bytes);
  message.close(in);
  damage(in, message.bytes());
  const MemoryConnection connection(std::move(message.bytes()));
  AnswerHeader read;
  if (receive_answer_header(connection, read, kNotEnded)) receive_partials(connection, read, query, in_milliseconds(1000), kNotEnded);
}

/** Sends what an input makes to a listener of this process, and waits until it has closed the connection. */
class Peer {
 public:
  explicit Peer(int port) : connection_(open_connection({"127.0.0.1", port}, Transport::tcp, key(), kLayout, 3000, kNotEnded)) {}
  bool is_open() const { return connection_ != nullptr; }
  bool send(const std::vector<uint8_t>& bytes) { return connection_->send(bytes.data(), bytes.size(), in_milliseconds(5000), kNotEnded); }
  bool receive(void* to, size_t bytes) { return connection_->receive(to, bytes, in_milliseconds(5000), kNotEnded); }
  /** The reader expects a header: zeros end the connection. */
  void end() {
    const std::vector<uint8_t> zeros(256);
    send(zeros);
    uint8_t some[4096];
    while (connection_->await_readable(in_milliseconds(5000), kNotEnded) && connection_->receive_some(some, sizeof some) > 0) {
    }
  }
  /** The reader may expect anything. */
  void cut() { connection_->shut_down(); }

 private:
  std::unique_ptr<Connection> connection_;
};

struct TransferWorld {
  std::shared_ptr<KvPool> pool = std::make_shared<KvPool>(Isa::portable, kLayout, kPages);
  std::shared_ptr<CompletionQueue> queue = std::make_shared<CompletionQueue>([] {});
  PageReceiver receiver{pool, {"127.0.0.1", 0}, Transport::tcp, key()};
};

void fuzz_pages(Input& in) {
  static TransferWorld world;
  std::vector<int32_t> pages;
  for (int i = 0; i < kSlots; i++) pages.push_back(i);
  const auto buffer = std::make_shared<ReceiveBuffer>(world.pool, world.queue, pages);
  buffer->set_number(1);
  const uint64_t buffer_key = world.receiver.register_buffer(buffer);
  Peer peer(world.receiver.port());
  if (!peer.is_open()) return;
  bool whole = true;
  for (uint32_t sequence = 1; sequence <= 4 && whole && (sequence == 1 || !in.is_empty()); sequence++) {
    FrameHeader header;
    header.kind = in.chance(16) ? static_cast<FrameKind>(in.number(4)) : in.chance(3) ? FrameKind::last_pages : FrameKind::pages;
    header.sequence = in.chance(20) ? in.raw<uint32_t>() : sequence;
    header.buffer = in.chance(20) ? in.raw<uint32_t>() : 1;
    header.buffer_key = in.chance(20) ? in.raw<uint64_t>() : buffer_key;
    header.count = static_cast<uint32_t>(in.number(kSlots + 2));
    header.bytes = in.chance(20) ? in.raw<uint64_t>() : header.count * kLayout.page_bytes();
    std::vector<uint32_t> slots(std::min<uint32_t>(header.count, 1 << 13));
    for (uint32_t& slot : slots) slot = static_cast<uint32_t>(in.chance(20) ? in.number(kSlots + 1) : in.byte() % kSlots);
    const bool is_listed = slots.size() == header.count;
    header.checksum = is_listed && !in.chance(20) ? header_checksum(Isa::portable, header, slots.data()) : in.raw<uint64_t>();
    Message message;
    message.head(header);
    message.append(slots.data(), slots.size() * sizeof(uint32_t));
    uint64_t sum = kPagesSeed;
    for (size_t i = 0; i < slots.size() && message.bytes().size() < kBytesMost; i++) {
      std::vector<uint8_t> page(kLayout.page_bytes());
      in.fill(page.data(), std::min<size_t>(page.size(), 16));
      sum = checksum(Isa::portable, page.data(), page.size(), sum);
      message.append(page.data(), page.size());
    }
    if (in.chance(8)) sum = given_up(header);
    if (in.chance(16)) sum ^= 1;
    message.append(&sum, sizeof sum);
    const size_t before = message.bytes().size();
    damage(in, message.bytes());
    whole = message.bytes().size() == before && header.bytes == slots.size() * kLayout.page_bytes() && is_listed;
    if (!peer.send(message.bytes())) break;
    if (in.chance(32)) buffer->close();
  }
  if (whole) peer.end();
  else peer.cut();
  buffer->close();
}

struct WorkerWorld {
  std::shared_ptr<Backend> backend = std::make_shared<Backend>(Isa::portable, 2);
  std::shared_ptr<KvPool> pool = std::make_shared<KvPool>(Isa::portable, kLayout, kPages);
  AttentionWorker worker{backend, pool, {"127.0.0.1", 0}, Transport::tcp, key(), true};
};

std::vector<int32_t> list_of(Input& in, int length, int usual) {
  std::vector<int32_t> list(static_cast<size_t>(std::clamp(length, 0, 64)));
  for (int32_t& each : list) each = in.number(usual);
  return list;
}

/** A step of `rows` rows, mostly consistent. */
std::vector<int32_t> step_words(Input& in, int rows) {
  ShardStep step;
  const int sequences = 1 + in.byte() % 3;
  step.row_start = {0};
  for (int s = 0; s < sequences; s++) {
    step.row_start.push_back(s + 1 == sequences && !in.chance(16) ? rows : step.row_start.back() + 1 + in.byte() % 3);
    step.positions.push_back(in.number(100));
  }
  const int groups = 1 + in.byte() % 2;
  for (int g = 0; g < groups; g++) {
    ShardGroup group;
    group.layers = 1 + in.byte() % 2;
    if (in.chance(3)) group.window = std::max(1, in.number(64));
    group.block_start = {0};
    for (int s = 0; s < sequences; s++) {
      const int rows_here = step.row_start[s + 1] - step.row_start[s];
      const int64_t last = int64_t{step.positions[s]} + rows_here - 1;
      const int blocks = in.chance(16) ? in.byte() % 4 : static_cast<int>(std::clamp<int64_t>(last / kPageTokens + 1, 0, 32));
      group.first_block.push_back(in.chance(16) ? in.number(4) : 0);
      for (int b = 0; b < blocks; b++) {
        const int32_t block = in.chance(24) ? in.number(kPages) : static_cast<int32_t>(group.blocks.size()) % (kPages / group.layers);
        group.blocks.push_back(block);
      }
      group.block_start.push_back(static_cast<int32_t>(group.blocks.size()));
    }
    if (!in.chance(8)) {
      for (int b = 0; b < kPages / group.layers; b++) group.changed.push_back(b);
      for (int p = 0; p < static_cast<int>(group.changed.size()) * group.layers; p++) group.pages.push_back(in.chance(60) ? in.number(kPages) : p);
    } else {
      group.changed = list_of(in, in.byte() % 8, kPages);
      group.pages = list_of(in, static_cast<int>(group.changed.size()) * group.layers, kPages);
    }
    step.groups.push_back(std::move(group));
  }
  if (in.chance(3)) {
    const auto entry = [&](size_t numbers, size_t lists) {
      ShardSparse one;
      for (size_t i = 0; i < numbers; i++) one.numbers.push_back(in.number(4));
      for (size_t i = 0; i < lists; i++) one.lists.push_back(list_of(in, in.byte() % 8, kPages));
      return one;
    };
    if (in.chance(2)) step.sparse.slots.push_back(entry(6, 5));
    if (in.chance(2)) step.sparse.selections.push_back(entry(7, 4));
    if (in.chance(2)) step.sparse.page_selections.push_back(entry(5, 1));
  }
  std::vector<int32_t> words = step.encode();
  if (in.chance(8) && !words.empty()) words[in.raw<uint32_t>() % words.size()] = in.raw<int32_t>();
  return words;
}

void fuzz_workers(Input& in) {
  static WorkerWorld world;
  Peer peer(world.worker.port());
  if (!peer.is_open()) return;
  ModelWorkerHello hello;
  hello.owner = uint64_t{7} << 16;
  hello.checksum = worker_checksum(hello);
  Message greeting;
  greeting.head(hello);
  WorkerHello answer;
  if (!peer.send(greeting.bytes()) || !peer.receive(&answer, sizeof answer)) return;
  uint32_t steps = 0;
  int calls = 0, rows = 1;
  bool whole = true;
  for (int i = 0; i < 8 && whole && (i == 0 || !in.is_empty()); i++) {
    WorkerFrame frame = {};
    const uint8_t what = in.byte() % 8;
    frame.kind = i == 0 || what == 0 ? WorkerFrameKind::step : what < 4 ? WorkerFrameKind::query : what < 7 ? WorkerFrameKind::keys : WorkerFrameKind::pages;
    if (in.chance(40)) frame.kind = static_cast<WorkerFrameKind>(in.number(6));
    if (frame.kind == WorkerFrameKind::step) {
      steps++;
      calls = 0;
      rows = 1 + in.byte() % 12;
    }
    frame.step = in.chance(24) ? in.raw<uint32_t>() : frame.kind == WorkerFrameKind::pages ? 1 : steps;
    frame.call = in.chance(24) ? in.number(4) : calls;
    frame.group = in.number(2);
    frame.layer = in.number(2);
    frame.heads = in.chance(8) ? in.number(9) : 2 * kLayout.kv_heads;
    frame.form = in.chance(24) ? static_cast<AttentionForm>(in.number(4)) : in.chance(3) ? AttentionForm::prev_new : AttentionForm::ranges;
    frame.rows = in.chance(24) ? in.number(20) : rows;
    frame.scale = in.chance(4) ? in.raw<float>() : 0.3f;
    frame.softcap = in.chance(4) ? in.raw<float>() : 0;
    Message message;
    std::vector<int32_t> words;
    const bool has_shape = frame.rows > 0 && frame.rows <= 64 && frame.heads > 0 && frame.heads <= 64;
    switch (frame.kind) {
      case WorkerFrameKind::step:
        words = step_words(in, rows);
        break;
      case WorkerFrameKind::query:
        frame.slopes = in.chance(8) ? static_cast<uint32_t>(in.number(9)) : in.chance(4) ? static_cast<uint32_t>(frame.heads) : 0;
        frame.bytes = has_shape ? query_bytes(Isa::portable, kLayout.type, frame.heads, kLayout.head_dim, 1) * static_cast<uint64_t>(frame.rows) : in.raw<uint32_t>();
        break;
      case WorkerFrameKind::keys:
        frame.bytes = has_shape ? 2ull * kLayout.kv_heads * kLayout.head_dim * 2 * static_cast<uint64_t>(frame.rows) : in.raw<uint32_t>();
        calls++;
        break;
      default:
        frame.rows = 1 + in.byte() % 4;
        words = list_of(in, frame.rows, kPages);
        frame.bytes = static_cast<uint64_t>(frame.rows) * kLayout.page_bytes();
    }
    frame.words = static_cast<uint32_t>(words.size());
    if (in.chance(32)) frame.words = in.raw<uint32_t>(), whole = false;
    if (in.chance(32)) frame.bytes = in.raw<uint64_t>(), whole = false;
    frame.checksum = worker_checksum(frame) ^ (in.chance(60) ? 1 : 0);
    message.head(frame);
    message.body(in, uint64_t{frame.slopes} * sizeof(float));
    message.add(words.data(), words.size() * sizeof(int32_t));
    message.body(in, frame.kind == WorkerFrameKind::step ? 0 : frame.bytes);
    message.close(in);
    whole = whole && frame.bytes <= kBytesMost && frame.slopes <= 64;
    if (!peer.send(message.bytes())) break;
  }
  if (whole) peer.end();
  else peer.cut();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  switch (in.byte() % 8) {
    case 0:
      fuzz_handshakes(in);
      break;
    case 1:
    case 2:
    case 3:
      fuzz_queries(in);
      break;
    case 4:
      fuzz_answers(in);
      break;
    case 5:
      fuzz_pages(in);
      break;
    default:
      fuzz_workers(in);
  }
  return 0;
}
