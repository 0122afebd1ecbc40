// The handshake of a connection, version 2, little-endian: each side proves that it has the shared key. docs/internals/cluster.md describes it.
#pragma once
#include "attention/attention.hpp"
#include "net/connection.hpp"
#include "net/keyed_hash.hpp"

namespace kvasir {

constexpr uint32_t kWireVersion = 2;
constexpr uint64_t kHelloMagic = 0x31726973'6176726bull;

/** First from either side. */
struct Hello {
  uint64_t magic = kHelloMagic;
  uint32_t version = kWireVersion;
  uint32_t unused = 0;
  std::array<uint8_t, 32> challenge;
};

/** What pages look like at the receiver: the sender's must be the same. */
struct PageShape {
  int32_t type, kv_heads, head_dim, page_tokens;
};

/** That the receiver knows the key too. */
struct Answer {
  Digest proof;
  PageShape shape;
};

static_assert(sizeof(Hello) == 48 && sizeof(Answer) == 48, "the wire has no gaps");

enum class Greeting { done, broken, refused, other_shape };
/** Either side of the greeting, until it is done or the deadline over. The one who connects proves first. */
Greeting greet_as_sender(const Line& line, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended);
Greeting greet_as_receiver(const Line& line, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended);

}  // namespace kvasir
