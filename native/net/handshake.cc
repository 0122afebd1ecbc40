// The handshake: each side draws a challenge and sends a keyed hash over both challenges.
#include "net/handshake.hpp"

#include <cstring>

namespace kvasir {
namespace {

/** Distinct labels: a proof cannot be reflected to its prover. */
enum class Prover : uint64_t { sender = 1, receiver = 2 };

struct ProofInput {
  Prover prover;
  uint64_t version = kWireVersion;
  std::array<uint8_t, 32> sender_challenge, receiver_challenge;
  PageShape shape;  // the receiver's; zero in the sender's proof, which comes before the shape
};

Digest proof_of(const HashKey& key, const ProofInput& input) { return keyed_hash(key, &input, sizeof input); }

PageShape shape_of(const KvLayout& layout) { return {static_cast<int32_t>(layout.type), layout.kv_heads, layout.head_dim, kPageTokens}; }

bool is_valid(const Hello& hello) { return hello.magic == kHelloMagic && hello.version == kWireVersion; }

Hello new_hello(const bool* rdma) {
  Hello hello;
  hello.offers_rdma = rdma != nullptr && *rdma ? 1 : 0;
  fill_random(hello.challenge.data(), hello.challenge.size());
  return hello;
}

}  // namespace

HandshakeResult handshake_as_sender(const Connection& connection, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended, bool* rdma) {
  const Hello own = new_hello(rdma);
  Hello other;
  if (!connection.send(&own, sizeof own, deadline, ended) || !connection.receive(&other, sizeof other, deadline, ended)) return HandshakeResult::broken;
  if (!is_valid(other)) return HandshakeResult::refused;
  if (rdma != nullptr) *rdma = *rdma && other.offers_rdma == 1;
  ProofInput input = {Prover::sender, kWireVersion, own.challenge, other.challenge, {}};
  const Digest proof = proof_of(key, input);
  Answer answer;
  if (!connection.send(&proof, sizeof proof, deadline, ended)) return HandshakeResult::broken;
  if (!connection.receive(&answer, sizeof answer, deadline, ended)) return HandshakeResult::refused;
  input.prover = Prover::receiver;
  input.shape = answer.shape;
  if (!same_digest(answer.proof, proof_of(key, input))) return HandshakeResult::refused;
  const PageShape shape = shape_of(layout);
  return std::memcmp(&answer.shape, &shape, sizeof shape) == 0 ? HandshakeResult::done : HandshakeResult::shape_mismatch;
}

HandshakeResult handshake_as_receiver(const Connection& connection, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended, bool* rdma) {
  Hello other;
  if (!connection.receive(&other, sizeof other, deadline, ended)) return HandshakeResult::broken;
  if (!is_valid(other)) return HandshakeResult::refused;
  if (rdma != nullptr) *rdma = *rdma && other.offers_rdma == 1;
  const Hello own = new_hello(rdma);
  Digest proof;
  if (!connection.send(&own, sizeof own, deadline, ended) || !connection.receive(&proof, sizeof proof, deadline, ended)) return HandshakeResult::broken;
  ProofInput input = {Prover::sender, kWireVersion, other.challenge, own.challenge, {}};
  if (!same_digest(proof, proof_of(key, input))) return HandshakeResult::refused;
  input.prover = Prover::receiver;
  input.shape = shape_of(layout);
  const Answer answer = {proof_of(key, input), input.shape};
  return connection.send(&answer, sizeof answer, deadline, ended) ? HandshakeResult::done : HandshakeResult::broken;
}

}  // namespace kvasir
