// Frames of pages one way and acknowledgements the other, little-endian, over a connection after its handshake.
// docs/internals/transfer.md describes them.
#pragma once
#include "base/checksum.hpp"
#include "net/handshake.hpp"

namespace kvasir {

constexpr uint32_t kFrameMagic = 0x6770766b;
constexpr uint32_t kAckMagic = 0x6b61766b;

enum class FrameKind : uint32_t { pages = 1, last_pages = 2 };

constexpr uint32_t kFramePagesMax = 4096;

/**
 * Followed by `count` 32-bit slots of the receive buffer, as many pages, and a 64-bit trailer: their checksum or
 * `given_up`.
 */
struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint32_t version = kWireVersion;
  FrameKind kind;
  uint32_t sequence;  // number of the frame on its connection, from 1
  uint32_t buffer;
  uint32_t count;
  uint64_t buffer_key;
  uint64_t bytes;     // of all pages
  uint64_t checksum;  // of the fields before it and of the slots
};

/** Status of the acknowledged frame. Earlier unacknowledged frames are received too. */
enum class AckStatus : uint32_t { received = 1, closed = 2 };

struct Ack {
  uint32_t magic = kAckMagic;
  uint32_t sequence;
  AckStatus status;
  uint32_t unused = 0;
};

static_assert(sizeof(FrameHeader) == 48 && sizeof(Ack) == 16, "the wire has no gaps");

/** Distinct seeds: a checksum of one part cannot pass for that of another. */
constexpr uint64_t kHeaderSeed = 1, kSlotsSeed = 2, kPagesSeed = 3;
inline uint64_t header_checksum(Isa isa, const FrameHeader& header, const uint32_t* slots) {
  const uint64_t head = checksum(isa, &header, offsetof(FrameHeader, checksum), kHeaderSeed);
  return checksum(isa, slots, header.count * sizeof *slots, head ^ kSlotsSeed);
}
/** The trailer of a frame of a stream that was stopped meanwhile: its pages are invalid. */
inline uint64_t given_up(const FrameHeader& header) { return ~header.checksum; }

}  // namespace kvasir
