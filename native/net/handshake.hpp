// The handshake of a connection, version 2, little-endian: each side proves that it has the shared key.
// docs/internals/transfer.md describes it.
#pragma once
#include "attention/attention.hpp"
#include "net/connection.hpp"
#include "net/keyed_hash.hpp"

namespace kvasir {

constexpr uint32_t kWireVersion = 2;
constexpr uint64_t kHelloMagic = 0x31726973'6176726bull;

/** The first message of either side. */
struct Hello {
  uint64_t magic = kHelloMagic;
  uint32_t version = kWireVersion;
  uint32_t offers_rdma = 0;  // 1: this side has a device; earlier releases of this version send 0
  std::array<uint8_t, 32> challenge;
};

/** The receiver's page layout; the sender's must be equal. */
struct PageShape {
  int32_t type, kv_heads, head_dim, page_tokens;
};

/** The receiver's proof. */
struct Answer {
  Digest proof;
  PageShape shape;
};

static_assert(sizeof(Hello) == 48 && sizeof(Answer) == 48, "wire structures have no padding");

enum class HandshakeResult { done, broken, refused, shape_mismatch };
/**
 * Runs one side of the handshake. The sender is the side that connects, and proves first. @param rdma whether this side
 * offers RDMA; afterwards whether both do
 */
HandshakeResult handshake_as_sender(const Connection& connection, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended, bool* rdma = nullptr);
HandshakeResult handshake_as_receiver(const Connection& connection, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended, bool* rdma = nullptr);

}  // namespace kvasir
