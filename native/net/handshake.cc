// The greeting: each side draws a challenge, and proves the key over both.
#include "net/handshake.hpp"

#include <cstring>

namespace kvasir {
namespace {

/** Labels differ, so that no proof can be sent back as one's own. */
enum class Prover : uint64_t { sender = 1, receiver = 2 };

struct Claim {
  Prover prover;
  uint64_t version = kWireVersion;
  std::array<uint8_t, 32> sender_challenge, receiver_challenge;
  PageShape shape;  // the receiver's; the sender does not know it yet
};

Digest proof_of(const HashKey& key, const Claim& claim) { return keyed_hash(key, &claim, sizeof claim); }

PageShape shape_of(const KvLayout& layout) { return {static_cast<int32_t>(layout.type), layout.kv_heads, layout.head_dim, kPageTokens}; }

bool is_sane(const Hello& hello) { return hello.magic == kHelloMagic && hello.version == kWireVersion; }

Hello new_hello() {
  Hello hello;
  fill_random(hello.challenge.data(), hello.challenge.size());
  return hello;
}

}  // namespace

Greeting greet_as_sender(const Line& line, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended) {
  const Hello own = new_hello();
  Hello other;
  if (!line.send(&own, sizeof own, deadline, ended) || !line.receive(&other, sizeof other, deadline, ended)) return Greeting::broken;
  if (!is_sane(other)) return Greeting::refused;
  Claim claim = {Prover::sender, kWireVersion, own.challenge, other.challenge, {}};
  const Digest proof = proof_of(key, claim);
  Answer answer;
  if (!line.send(&proof, sizeof proof, deadline, ended)) return Greeting::broken;
  if (!line.receive(&answer, sizeof answer, deadline, ended)) return Greeting::refused;
  claim.prover = Prover::receiver;
  claim.shape = answer.shape;
  if (!same_digest(answer.proof, proof_of(key, claim))) return Greeting::refused;
  const PageShape shape = shape_of(layout);
  return std::memcmp(&answer.shape, &shape, sizeof shape) == 0 ? Greeting::done : Greeting::other_shape;
}

Greeting greet_as_receiver(const Line& line, const HashKey& key, const KvLayout& layout, Deadline deadline, const std::atomic<bool>& ended) {
  Hello other;
  if (!line.receive(&other, sizeof other, deadline, ended)) return Greeting::broken;
  if (!is_sane(other)) return Greeting::refused;
  const Hello own = new_hello();
  Digest proof;
  if (!line.send(&own, sizeof own, deadline, ended) || !line.receive(&proof, sizeof proof, deadline, ended)) return Greeting::broken;
  Claim claim = {Prover::sender, kWireVersion, other.challenge, own.challenge, {}};
  if (!same_digest(proof, proof_of(key, claim))) return Greeting::refused;
  claim.prover = Prover::receiver;
  claim.shape = shape_of(layout);
  const Answer answer = {proof_of(key, claim), claim.shape};
  return line.send(&answer, sizeof answer, deadline, ended) ? Greeting::done : Greeting::broken;
}

}  // namespace kvasir
