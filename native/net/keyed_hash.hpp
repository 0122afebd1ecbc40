// Proof of knowing a key: keyed BLAKE2s (RFC 7693) of up to 256 bits.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace kvasir {

using HashKey = std::array<uint8_t, 32>;
using Digest = std::array<uint8_t, 32>;

Digest keyed_hash(const HashKey& key, const void* message, size_t bytes);
/** Takes as long whatever differs. */
bool same_digest(const Digest& a, const Digest& b);
/** From the system, for keys and challenges. */
void fill_random(void* out, size_t bytes);

}  // namespace kvasir
