// Frames are checked before memory is taken by their claims, and their bodies before anybody sees them.
#include "remote/query_frames.hpp"

#include <algorithm>
#include <cstring>

#include "base/checksum.hpp"

namespace kvasir {
namespace {

constexpr uint64_t kQuerySeed = 11, kBodySeed = 12, kAnswerSeed = 13, kPartialsSeed = 14;
constexpr int kRowsMost = 1 << 16, kHeadsMost = 1 << 12;
constexpr uint32_t kKeysMost = 1 << 16, kBlocksMost = 1 << 22, kNodesMost = 1 << 12;
constexpr uint64_t kPartialBytesMost = uint64_t{1} << 28;

/** Sends a header and what comes behind it, which it sums up: in as few pieces as there is room for. */
class Letter {
 public:
  Letter(Line& line, Isa isa, Deadline deadline, const std::atomic<bool>& ended) : line_(line), isa_(isa), deadline_(deadline), ended_(ended) {}

  template <class Header>
  void head(const Header& header) {
    put(&header, sizeof header);
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  void add(const void* data, size_t bytes) {
    sum_ = checksum(isa_, data, bytes, sum_);
    put(data, bytes);
  }
  /** False where not all of it has left. */
  bool close() {
    put(&sum_, sizeof sum_);
    return flush();
  }

 private:
  void put(const void* data, size_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    while (whole_ && bytes > 0) {
      if (piece_ == nullptr) piece_ = line_.draft(Line::kDraftBytes, deadline_, ended_);
      whole_ = piece_ != nullptr;
      const size_t fits = whole_ ? std::min(bytes, Line::kDraftBytes - filled_) : 0;
      if (fits > 0) std::memcpy(piece_ + filled_, from, fits);
      filled_ += fits;
      from += fits;
      bytes -= fits;
      if (filled_ == Line::kDraftBytes) flush();
    }
  }
  bool flush() {
    whole_ = whole_ && (filled_ == 0 || line_.post(filled_, deadline_, ended_));
    piece_ = nullptr;
    filled_ = 0;
    return whole_;
  }

  Line& line_;
  Isa isa_;
  Deadline deadline_;
  const std::atomic<bool>& ended_;
  uint8_t* piece_ = nullptr;
  size_t filled_ = 0;
  uint64_t sum_ = kBodySeed;
  bool whole_ = true;
};

/** Sums up what it receives. */
class Body {
 public:
  Body(const Line& line, Isa isa, Deadline deadline, const std::atomic<bool>& ended) : line_(line), isa_(isa), deadline_(deadline), ended_(ended) {}

  template <class T>
  bool receive(std::vector<T>& values, size_t count) {
    values.resize(count);
    return receive_into(values.data(), count * sizeof(T));
  }
  bool receive_into(void* data, size_t bytes) {
    const bool came = bytes == 0 || line_.receive(data, bytes, deadline_, ended_);
    if (came) sum_ = checksum(isa_, data, bytes, sum_);
    return came;
  }
  bool receive_sum() const {
    uint64_t sum;
    return line_.receive(&sum, sizeof sum, deadline_, ended_) && sum == sum_;
  }

 private:
  const Line& line_;
  Isa isa_;
  Deadline deadline_;
  const std::atomic<bool>& ended_;
  uint64_t sum_ = kBodySeed;
};

template <class Header>
uint64_t sum_of(const Header& header, uint64_t seed) {
  return checksum(Isa::portable, &header, offsetof(Header, checksum), seed);
}

bool is_sane(const QueryHeader& header, const KvLayout& layout, uint32_t sequence) {
  if (header.magic != kQueryMagic || header.version != kGuestWireVersion || header.sequence != sequence) return false;
  if (header.checksum != sum_of(header, kQuerySeed) || header.isa < 0 || header.isa > static_cast<int32_t>(Isa::amx)) return false;
  if (header.rows <= 0 || header.rows > kRowsMost || header.heads <= 0 || header.heads > kHeadsMost || header.start < 0 || header.layer < 0) return false;
  if (header.slopes != 0 && header.slopes != static_cast<uint32_t>(header.heads)) return false;
  if (header.keys > kKeysMost || header.blocks > kBlocksMost || header.nodes > kNodesMost) return false;
  const uint64_t partials = uint64_t{static_cast<uint32_t>(header.rows)} * static_cast<uint32_t>(header.heads) * (layout.head_dim + 2) * sizeof(float) * header.nodes;
  const size_t query = query_bytes(static_cast<Isa>(header.isa), layout.type, header.heads, layout.head_dim, header.rows);
  return partials <= kPartialBytesMost && header.query_bytes == query;
}

}  // namespace

size_t query_letter_bytes(const GuestQuery& query) {
  const size_t lists = query.slopes.size() * sizeof(float) + query.keys.size() * sizeof(GuestKeys) + query.blocks.size() * sizeof(int32_t);
  return sizeof(QueryHeader) + lists + query.nodes.size() * sizeof(GuestNode) + query.query.size() + sizeof(uint64_t);
}

size_t answer_letter_bytes(const GuestQuery& query) { return sizeof(AnswerHeader) + query.bytes_back() + sizeof(uint64_t); }

bool send_query(Line& line, const GuestQuery& query, uint32_t sequence, Deadline deadline, const std::atomic<bool>& ended) {
  QueryHeader header;
  header.sequence = sequence;
  header.isa = static_cast<int32_t>(query.isa);
  header.heads = query.heads;
  header.layer = query.layer;
  header.rows = query.rows;
  header.start = query.start;
  header.scale = query.scale;
  header.softcap = query.softcap;
  header.slopes = static_cast<uint32_t>(query.slopes.size());
  header.keys = static_cast<uint32_t>(query.keys.size());
  header.blocks = static_cast<uint32_t>(query.blocks.size());
  header.nodes = static_cast<uint32_t>(query.nodes.size());
  header.query_bytes = query.query.size();
  header.checksum = sum_of(header, kQuerySeed);
  Letter letter(line, query.isa, deadline, ended);
  letter.head(header);
  letter.add(query.slopes);
  letter.add(query.keys);
  letter.add(query.blocks);
  letter.add(query.nodes);
  letter.add(query.query);
  return letter.close();
}

std::shared_ptr<GuestQuery> receive_query(const Line& line, const KvLayout& layout, uint32_t sequence, int stall_ms, const std::atomic<bool>& ended) {
  QueryHeader header;
  if (!line.receive(&header, sizeof header, kNever, ended) || !is_sane(header, layout, sequence)) return nullptr;
  auto query = std::make_shared<GuestQuery>();
  query->isa = static_cast<Isa>(header.isa);
  query->layout = layout;
  query->heads = header.heads;
  query->layer = header.layer;
  query->rows = header.rows;
  query->start = header.start;
  query->scale = header.scale;
  query->softcap = header.softcap;
  Body body(line, query->isa, in_milliseconds(stall_ms), ended);
  const bool whole = body.receive(query->slopes, header.slopes) && body.receive(query->keys, header.keys) && body.receive(query->blocks, header.blocks) &&
                     body.receive(query->nodes, header.nodes) && body.receive(query->query, header.query_bytes) && body.receive_sum();
  return whole ? query : nullptr;
}

bool send_answer(Line& line, const GuestQuery& query, uint32_t sequence, Deadline deadline, const std::atomic<bool>& ended) {
  const bool answered = query.state.load(std::memory_order_acquire) == GuestQuery::State::answered;
  AnswerHeader header;
  header.sequence = sequence;
  header.answered = answered ? 1 : 0;
  header.bytes = answered ? query.bytes_back() : 0;
  header.checksum = sum_of(header, kAnswerSeed);
  Letter letter(line, query.isa, deadline, ended);
  letter.head(header);
  letter.add(query.partials.data(), header.bytes);
  return letter.close();
}

bool receive_answer_header(const Line& line, AnswerHeader& header, const std::atomic<bool>& ended) {
  if (!line.receive(&header, sizeof header, kNever, ended)) return false;
  return header.magic == kAnswerMagic && header.version == kGuestWireVersion && header.checksum == sum_of(header, kAnswerSeed);
}

bool receive_partials(const Line& line, const AnswerHeader& header, GuestQuery& query, Deadline deadline, const std::atomic<bool>& ended) {
  const uint64_t wanted = header.answered != 0 ? query.bytes_back() : 0;
  if (header.bytes != wanted) return false;
  Body body(line, query.isa, deadline, ended);
  // Its partials stay as large as they are: whoever asked has pointers to them.
  return body.receive_into(query.partials.data(), wanted) && body.receive_sum();
}

}  // namespace kvasir
