// What goes over a connection between messengers, version 2, little-endian: a greeting that proves the key, then frames of pages one way and
// acknowledgements the other. docs/cluster.md describes it.
#pragma once
#include "keyed_hash.hpp"
#include "kv_pool.hpp"
#include "tcp_socket.hpp"

namespace kvasir {

constexpr uint32_t kWireVersion = 2;
constexpr uint64_t kHelloMagic = 0x31726973'6176726bull;
constexpr uint32_t kFrameMagic = 0x6770766b;
constexpr uint32_t kAckMagic = 0x6b61766b;

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

enum class FrameKind : uint32_t { pages = 1, last_pages = 2 };

constexpr uint32_t kFramePagesMax = 4096;

/** Then `count` places of the landing, 32 bits each, as many pages, and 64 bits: their checksum, or `given_up`. */
struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint32_t version = kWireVersion;
  FrameKind kind;
  uint32_t sequence;  // of the connection's frames, from 1
  uint32_t landing;
  uint32_t count;
  uint64_t landing_key;
  uint64_t bytes;     // of all pages together
  uint64_t checksum;  // of what stands before, and of the places
};

/** Of the frame of that sequence; those before it have landed, unless they were acknowledged themselves. */
enum class Fate : uint32_t { landed = 1, closed = 2 };

struct Ack {
  uint32_t magic = kAckMagic;
  uint32_t sequence;
  Fate fate;
  uint32_t unused = 0;
};

static_assert(sizeof(Hello) == 48 && sizeof(Answer) == 48 && sizeof(FrameHeader) == 48 && sizeof(Ack) == 16, "the wire has no gaps");

/** Seeds of checksums, so that one cannot stand for the other. */
constexpr uint64_t kHeaderSeed = 1, kPlacesSeed = 2, kPagesSeed = 3;
uint64_t header_checksum(Isa isa, const FrameHeader& header, const uint32_t* places);
/** In place of the pages' checksum: what stands for them is nothing, since their stream was stopped meanwhile. */
inline uint64_t given_up(const FrameHeader& header) { return ~header.checksum; }

enum class Greeting { done, broken, refused, other_shape };
/** Either side of the greeting, until it is done or the deadline over. The one who connects proves first. */
Greeting greet_as_sender(const Line& line, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended);
Greeting greet_as_receiver(const Line& line, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended);

}  // namespace kvasir
