// A header is checked before memory of the size it states is allocated, and a body before the query is returned.
#include "remote/query_frames.hpp"

#include <algorithm>

#include "net/message.hpp"

namespace kvasir {
namespace {

constexpr uint64_t kQuerySeed = 11, kAnswerSeed = 13;
constexpr int kRowsMost = 1 << 16, kHeadsMost = 1 << 12;
constexpr uint32_t kKeysMost = 1 << 16, kBlocksMost = 1 << 22, kNodesMost = 1 << 12;

/** The checksum of the body uses the stated instructions: those that this machine lacks would end the process. */
bool has_instructions(int32_t isa) {
  static const Isa own = detect_isa();
  return isa >= 0 && isa <= static_cast<int32_t>(own);
}

bool is_valid(const QueryHeader& header, const KvLayout& layout, uint32_t sequence) {
  if (header.magic != kQueryMagic || header.version != kQueryWireVersion || header.sequence != sequence) return false;
  if (header.checksum != header_checksum(header, kQuerySeed) || !has_instructions(header.isa)) return false;
  if (header.rows <= 0 || header.rows > kRowsMost || header.heads <= 0 || header.heads > kHeadsMost || header.start < 0 || header.layer < 0) return false;
  if (header.slopes != 0 && header.slopes != static_cast<uint32_t>(header.heads)) return false;
  if (header.keys > kKeysMost || header.blocks > kBlocksMost || header.nodes > kNodesMost) return false;
  // At least one node: the bound holds for the rows of the query too.
  const uint64_t partials = uint64_t{static_cast<uint32_t>(header.rows)} * static_cast<uint32_t>(header.heads) * (layout.head_dim + 2) * sizeof(float) * std::max(header.nodes, 1u);
  const size_t query = query_bytes(static_cast<Isa>(header.isa), layout.type, header.heads, layout.head_dim, header.rows);
  const uint64_t pages = header.nodes == 0 ? uint64_t{header.blocks} * layout.page_bytes() : 0;
  return std::max(partials, pages) <= kAnswerBytesMost && header.query_bytes == query;
}

}  // namespace

size_t query_message_bytes(const RemoteQuery& query) {
  const size_t lists = query.slopes.size() * sizeof(float) + query.keys.size() * sizeof(QueryKeys) + query.blocks.size() * sizeof(int32_t);
  return sizeof(QueryHeader) + lists + query.nodes.size() * sizeof(QueryNode) + query.query.size() + sizeof(uint64_t);
}

size_t answer_message_bytes(const RemoteQuery& query) { return sizeof(AnswerHeader) + query.bytes_back() + sizeof(uint64_t); }

bool send_query(Connection& connection, const RemoteQuery& query, uint32_t sequence, Deadline deadline, const std::atomic<bool>& ended) {
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
  header.checksum = header_checksum(header, kQuerySeed);
  MessageWriter message(connection, query.isa, deadline, ended);
  message.head(header);
  message.add(query.slopes);
  message.add(query.keys);
  message.add(query.blocks);
  message.add(query.nodes);
  message.add(query.query);
  return message.close();
}

std::shared_ptr<RemoteQuery> receive_query(const Connection& connection, const KvLayout& layout, uint32_t sequence, int stall_ms, const std::atomic<bool>& ended) {
  QueryHeader header;
  if (!connection.receive(&header, sizeof header, kNever, ended) || !is_valid(header, layout, sequence)) return nullptr;
  auto query = std::make_shared<RemoteQuery>();
  query->isa = static_cast<Isa>(header.isa);
  query->layout = layout;
  query->heads = header.heads;
  query->layer = header.layer;
  query->rows = header.rows;
  query->start = header.start;
  query->scale = header.scale;
  query->softcap = header.softcap;
  MessageReader body(connection, query->isa, in_milliseconds(stall_ms), ended);
  const bool whole = body.receive(query->slopes, header.slopes) && body.receive(query->keys, header.keys) && body.receive(query->blocks, header.blocks) &&
                     body.receive(query->nodes, header.nodes) && body.receive(query->query, header.query_bytes) && body.receive_sum();
  return whole ? query : nullptr;
}

bool send_answer(Connection& connection, const RemoteQuery& query, uint32_t sequence, Deadline deadline, const std::atomic<bool>& ended) {
  const bool answered = query.state.load(std::memory_order_acquire) == RemoteQuery::State::answered;
  AnswerHeader header;
  header.sequence = sequence;
  header.answered = answered ? 1 : 0;
  header.bytes = answered ? query.bytes_back() : 0;
  header.checksum = header_checksum(header, kAnswerSeed);
  MessageWriter message(connection, query.isa, deadline, ended);
  message.head(header);
  message.add(query.answer, header.bytes);
  return message.close();
}

bool receive_answer_header(const Connection& connection, AnswerHeader& header, const std::atomic<bool>& ended) {
  if (!connection.receive(&header, sizeof header, kNever, ended)) return false;
  return header.magic == kAnswerMagic && header.version == kQueryWireVersion && header.checksum == header_checksum(header, kAnswerSeed);
}

bool receive_answer_body(const Connection& connection, const AnswerHeader& header, RemoteQuery& query, Deadline deadline, const std::atomic<bool>& ended) {
  const uint64_t wanted = header.answered != 0 ? query.bytes_back() : 0;
  if (header.bytes != wanted) return false;
  MessageReader body(connection, query.isa, deadline, ended);
  return body.receive_into(query.answer, wanted) && body.receive_sum();
}

}  // namespace kvasir
