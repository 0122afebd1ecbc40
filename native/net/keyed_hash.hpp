// Keyed BLAKE2s (RFC 7693), which proves that a peer has the shared key of 256 bits.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace kvasir {

using HashKey = std::array<uint8_t, 32>;
using Digest = std::array<uint8_t, 32>;

Digest keyed_hash(const HashKey& key, const void* message, size_t bytes);
/** Compares in constant time. */
bool same_digest(const Digest& a, const Digest& b);
/** Fills `out` from the system's random source, for keys and challenges. */
void fill_random(void* out, size_t bytes);

}  // namespace kvasir
