// Keyed BLAKE2s over one message.
#include "net/keyed_hash.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace kvasir {
namespace {

constexpr size_t kBlock = 64;
constexpr uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
constexpr uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

uint32_t rotated_right(uint32_t value, int bits) { return (value >> bits) | (value << (32 - bits)); }

void mix(uint32_t* v, int a, int b, int c, int d, uint32_t x, uint32_t y) {
  v[a] += v[b] + x;
  v[d] = rotated_right(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = rotated_right(v[b] ^ v[c], 12);
  v[a] += v[b] + y;
  v[d] = rotated_right(v[d] ^ v[a], 8);
  v[c] += v[d];
  v[b] = rotated_right(v[b] ^ v[c], 7);
}

void compress(uint32_t* state, const uint8_t* block, uint64_t counted, bool last) {
  uint32_t m[16], v[16];
  std::memcpy(m, block, sizeof m);
  std::memcpy(v, state, 32);
  std::memcpy(v + 8, kStart, 32);
  v[12] ^= static_cast<uint32_t>(counted);
  v[13] ^= static_cast<uint32_t>(counted >> 32);
  if (last) v[14] = ~v[14];
  for (const uint8_t* s : kOrder) {
    for (int i = 0; i < 4; i++) mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
    for (int i = 0; i < 4; i++) mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
  }
  for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
}

}  // namespace

Digest keyed_hash(const HashKey& key, const void* message, size_t bytes) {
  uint32_t state[8];
  std::memcpy(state, kStart, sizeof state);
  state[0] ^= 0x01010000u ^ (static_cast<uint32_t>(key.size()) << 8) ^ static_cast<uint32_t>(sizeof(Digest));
  uint8_t block[kBlock] = {};
  std::copy(key.begin(), key.end(), block);
  compress(state, block, kBlock, bytes == 0);
  const auto* from = static_cast<const uint8_t*>(message);
  for (size_t done = 0; done < bytes;) {
    const size_t count = std::min(kBlock, bytes - done);
    std::memset(block, 0, kBlock);
    std::memcpy(block, from + done, count);
    done += count;
    compress(state, block, kBlock + done, done == bytes);
  }
  Digest digest;
  std::memcpy(digest.data(), state, digest.size());
  return digest;
}

bool same_digest(const Digest& a, const Digest& b) {
  uint8_t differs = 0;
  for (size_t i = 0; i < a.size(); i++) differs |= a[i] ^ b[i];
  return differs == 0;
}

void fill_random(void* out, size_t bytes) {
  std::random_device device;
  auto* to = static_cast<uint8_t*>(out);
  for (size_t done = 0; done < bytes; done += sizeof(uint32_t)) {
    const uint32_t word = device();
    std::memcpy(to + done, &word, std::min(sizeof word, bytes - done));
  }
}

}  // namespace kvasir
