// Frames of pages one way and acknowledgements the other, little-endian, over a connection after its handshake. docs/internals/cluster.md describes them.
#pragma once
#include "base/checksum.hpp"
#include "net/handshake.hpp"

namespace kvasir {

constexpr uint32_t kFrameMagic = 0x6770766b;
constexpr uint32_t kAckMagic = 0x6b61766b;

enum class FrameKind : uint32_t { pages = 1, last_pages = 2 };

constexpr uint32_t kFramePagesMax = 4096;

/** Then `count` slots of the buffer, 32 bits each, as many pages, and 64 bits: their checksum, or `given_up`. */
struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint32_t version = kWireVersion;
  FrameKind kind;
  uint32_t sequence;  // of the connection's frames, from 1
  uint32_t buffer;
  uint32_t count;
  uint64_t buffer_key;
  uint64_t bytes;     // of all pages together
  uint64_t checksum;  // of what stands before, and of the slots
};

/** Of the frame of that sequence; those before it have landed, unless they were acknowledged themselves. */
enum class AckStatus : uint32_t { received = 1, closed = 2 };

struct Ack {
  uint32_t magic = kAckMagic;
  uint32_t sequence;
  AckStatus status;
  uint32_t unused = 0;
};

static_assert(sizeof(FrameHeader) == 48 && sizeof(Ack) == 16, "the wire has no gaps");

/** Seeds of checksums, so that one cannot stand for the other. */
constexpr uint64_t kHeaderSeed = 1, kSlotsSeed = 2, kPagesSeed = 3;
inline uint64_t header_checksum(Isa isa, const FrameHeader& header, const uint32_t* slots) {
  const uint64_t head = checksum(isa, &header, offsetof(FrameHeader, checksum), kHeaderSeed);
  return checksum(isa, slots, header.count * sizeof *slots, head ^ kSlotsSeed);
}
/** In slot of the pages' checksum: what stands for them is nothing, since their stream was stopped meanwhile. */
inline uint64_t given_up(const FrameHeader& header) { return ~header.checksum; }

}  // namespace kvasir
