// Wire format of remote attention, version 2, little-endian: after the handshake, queries one way and answers the
// other.
#pragma once
#include "net/handshake.hpp"
#include "remote/query.hpp"

namespace kvasir {

constexpr uint32_t kQueryWireVersion = 2;  // version 2 has key ranges of 256 tokens
constexpr uint32_t kQueryMagic = 0x71677672;
constexpr uint32_t kAnswerMagic = 0x61677672;
constexpr int kStallMs = 20000;  // longest wait between the parts of one frame

/** Longest answer. */
constexpr uint64_t kAnswerBytesMost = uint64_t{1} << 28;

/** Followed by slopes (float32), keys, blocks (int32), nodes, the query's rows, and a 64-bit checksum of these. */
struct QueryHeader {
  uint32_t magic = kQueryMagic;
  uint32_t version = kQueryWireVersion;
  uint32_t sequence;  // number of the query on its connection, from 1
  int32_t isa, heads, layer, rows, start;
  float scale, softcap;
  uint32_t slopes, keys, blocks, nodes;
  uint64_t query_bytes;
  uint64_t checksum;  // of the fields before it
};

/** Followed by the partials of the query's nodes, or by its pages if it has no node, unless it was refused, and their 64-bit checksum. */
struct AnswerHeader {
  uint32_t magic = kAnswerMagic;
  uint32_t version = kQueryWireVersion;
  uint32_t sequence;
  uint32_t answered;  // 0: refused
  uint64_t bytes;
  uint64_t checksum;
};

static_assert(sizeof(QueryHeader) == 72 && sizeof(AnswerHeader) == 32 && sizeof(QueryKeys) == 12 && sizeof(QueryNode) == 8, "wire structures have no padding");

/** Bytes of the whole message. */
size_t query_message_bytes(const RemoteQuery& query);
size_t answer_message_bytes(const RemoteQuery& query);
/** False if the connection broke. */
bool send_query(Connection& connection, const RemoteQuery& query, uint32_t sequence, Deadline deadline, const std::atomic<bool>& ended);
/**
 * Null unless a valid query with this sequence number and layout arrives. The blocks are not checked against the lent
 * ones.
 */
std::shared_ptr<RemoteQuery> receive_query(const Connection& connection, const KvLayout& layout, uint32_t sequence, int stall_ms, const std::atomic<bool>& ended);
bool send_answer(Connection& connection, const RemoteQuery& query, uint32_t sequence, Deadline deadline, const std::atomic<bool>& ended);
bool receive_answer_header(const Connection& connection, AnswerHeader& header, const std::atomic<bool>& ended);
bool receive_answer_body(const Connection& connection, const AnswerHeader& header, RemoteQuery& query, Deadline deadline, const std::atomic<bool>& ended);

}  // namespace kvasir
