// Queries and partials over a connection, version 2, little-endian: after the greeting of messengers, queries go one way and answers the other.
#pragma once
#include "net/handshake.hpp"
#include "remote/query.hpp"

namespace kvasir {

constexpr uint32_t kGuestWireVersion = 2;  // 2: ranges of 256 keys
constexpr uint32_t kQueryMagic = 0x71677672;
constexpr uint32_t kAnswerMagic = 0x61677672;

/** Then slopes (float32), keys, blocks (int32), nodes and the query's rows, and 64 bits: their checksum. */
struct QueryHeader {
  uint32_t magic = kQueryMagic;
  uint32_t version = kGuestWireVersion;
  uint32_t sequence;  // of the connection's queries, from 1
  int32_t isa, heads, layer, rows, start;
  float scale, softcap;
  uint32_t slopes, keys, blocks, nodes;
  uint64_t query_bytes;
  uint64_t checksum;  // of what stands before
};

/** Then the partials of the query's nodes, if it was answered, and 64 bits: their checksum. */
struct AnswerHeader {
  uint32_t magic = kAnswerMagic;
  uint32_t version = kGuestWireVersion;
  uint32_t sequence;
  uint32_t answered;  // 0: refused
  uint64_t bytes;
  uint64_t checksum;
};

static_assert(sizeof(QueryHeader) == 72 && sizeof(AnswerHeader) == 32 && sizeof(GuestKeys) == 12 && sizeof(GuestNode) == 8, "the wire has no gaps");

/** Of all that goes over the line. */
size_t query_letter_bytes(const GuestQuery& query);
size_t answer_letter_bytes(const GuestQuery& query);
/** All or nothing; false where the connection is of no more use. */
bool send_query(Line& line, const GuestQuery& query, uint32_t sequence, Deadline deadline, const std::atomic<bool>& ended);
/** Null where what came is no query of that sequence over pages of this layout. It is open, and not checked against what is lent. */
std::shared_ptr<GuestQuery> receive_query(const Line& line, const KvLayout& layout, uint32_t sequence, int stall_ms, const std::atomic<bool>& ended);
bool send_answer(Line& line, const GuestQuery& query, uint32_t sequence, Deadline deadline, const std::atomic<bool>& ended);
bool receive_answer_header(const Line& line, AnswerHeader& header, const std::atomic<bool>& ended);
/** Into the query's partials. */
bool receive_partials(const Line& line, const AnswerHeader& header, GuestQuery& query, Deadline deadline, const std::atomic<bool>& ended);

}  // namespace kvasir
