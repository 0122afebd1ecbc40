// The layout of K and V inside a page, and the rounding of queries. A KV head's part of a page is contiguous: K, then
// V. f32: K (head_dim, 32), V (32, head_dim). bf16, for instructions that take pairs: K (head_dim / 2, 32, 2), V (16,
// head_dim, 2). q8: q8_page.hpp. All instruction sets share one layout.
#include "attention/attention.hpp"
#include "attention/q8_page.hpp"
#include "simd/float_bits.hpp"

namespace kvasir {
namespace {

/** Bytes of a query's element. Queries of q8 pages stay float32: the kernels round them to 16-bit integers. */
size_t element_bytes(KvType type) { return type == KvType::bf16 ? 2 : 4; }

size_t half_bytes(const KvLayout& layout) {
  if (layout.type == KvType::q8) return Q8Page::half_bytes(layout.head_dim);
  return kPageTokens * static_cast<size_t>(layout.head_dim) * element_bytes(layout.type);
}

/** K and V of one KV head inside a page, as elements of T. */
template <class T>
struct HeadPage {
  T* k;
  T* v;
  int head_dim;

  HeadPage(const KvLayout& layout, uint8_t* page, int head)
      : k(reinterpret_cast<T*>(page + 2 * half_bytes(layout) * head)), v(k + kPageTokens * layout.head_dim), head_dim(layout.head_dim) {}

  T& key(int slot, int dim) const {
    if constexpr (sizeof(T) == 2) return k[((dim >> 1) * kPageTokens + slot) * 2 + (dim & 1)];
    return k[dim * kPageTokens + slot];
  }
  T& value(int slot, int dim) const {
    if constexpr (sizeof(T) == 2) return v[((slot >> 1) * head_dim + dim) * 2 + (slot & 1)];
    return v[slot * head_dim + dim];
  }
};

constexpr int kRoundedAtOnce = 64;

/** Rounds `count` values to bf16, ties to even, eight at a time; the bits equal those of float_to_bf16. */
void round_bf16(const float* from, int count, uint16_t* out) {
  typedef uint32_t Words __attribute__((vector_size(32)));
  typedef uint16_t Halves __attribute__((vector_size(16)));
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    Words bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const Words nan = (Words)((bits & 0x7fffffffu) > 0x7f800000u);
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Halves halves = __builtin_convertvector((nan & ((bits >> 16) | 0x40)) | (~nan & rounded), Halves);
    std::memcpy(out + i, &halves, sizeof halves);
  }
  for (; i < count; i++) out[i] = float_to_bf16(from[i]);
}

/**
 * Writes one token of one head. Both bf16 halves of a pair go in one store, since other threads write neighbouring
 * slots.
 */
void write_token_bf16(const HeadPage<uint16_t>& page, int slot, const float* k, const float* v) {
  uint16_t* values = &page.value(slot, 0);
  uint16_t rounded[kRoundedAtOnce];
  for (int begin = 0; begin < page.head_dim; begin += kRoundedAtOnce) {
    const int count = page.head_dim - begin < kRoundedAtOnce ? page.head_dim - begin : kRoundedAtOnce;
    round_bf16(k + begin, count, rounded);
    for (int d = 0; d < count; d += 2) std::memcpy(&page.key(slot, begin + d), rounded + d, 2 * sizeof(uint16_t));
    round_bf16(v + begin, count, rounded);
    for (int d = 0; d < count; d++) values[2 * (begin + d)] = rounded[d];
  }
}

void write_token_f32(const HeadPage<float>& page, int slot, const float* k, const float* v) {
  for (int d = 0; d < page.head_dim; d++) page.key(slot, d) = k[d];
  std::memcpy(&page.value(slot, 0), v, sizeof(float) * page.head_dim);
}

float widen(uint16_t value) { return bf16_to_float(value); }
float widen(float value) { return value; }

template <class T>
void read_head(const HeadPage<T>& page, float* k, float* v) {
  for (int slot = 0; slot < kPageTokens; slot++) {
    for (int d = 0; d < page.head_dim; d++) {
      *k++ = widen(page.key(slot, d));
      *v++ = widen(page.value(slot, d));
    }
  }
}

}  // namespace

size_t KvLayout::page_bytes() const { return 2 * half_bytes(*this) * kv_heads; }

std::string KvLayout::refusal() const {
  const char* reason = type == KvType::bf16 && head_dim % 2 != 0      ? " is odd: bf16 pages hold pairs"
                       : type == KvType::q8 && head_dim % kQ8Dims != 0 ? " is no multiple of 32: q8 pages hold blocks of 32 dimensions"
                                                                       : nullptr;
  return reason == nullptr ? "" : "headDim " + std::to_string(head_dim) + reason;
}

size_t query_bytes(Isa, KvType type, int heads, int head_dim, int tokens) {
  return element_bytes(type) * static_cast<size_t>(heads) * head_dim * tokens;
}

void write_query_row(Isa, KvType type, int heads, int head_dim, void* buffer, int token, const float* q) {
  size_t count = static_cast<size_t>(heads) * head_dim;
  if (type != KvType::bf16) {
    std::memcpy(static_cast<float*>(buffer) + count * token, q, sizeof(float) * count);
    return;
  }
  round_bf16(q, static_cast<int>(count), static_cast<uint16_t*>(buffer) + count * token);
}

void read_query_row(Isa, KvType type, int heads, int head_dim, const void* buffer, int token, float* out) {
  size_t count = static_cast<size_t>(heads) * head_dim;
  if (type != KvType::bf16) {
    std::memcpy(out, static_cast<const float*>(buffer) + count * token, sizeof(float) * count);
    return;
  }
  const uint16_t* row = static_cast<const uint16_t*>(buffer) + count * token;
  for (size_t i = 0; i < count; i++) out[i] = bf16_to_float(row[i]);
}

void round_kv(KvType type, int count, float* values) {
  if (type == KvType::bf16) {
    for (int i = 0; i < count; i++) values[i] = bf16_to_float(float_to_bf16(values[i]));
  } else if (type == KvType::q8) {
    for (int i = 0; i < count; i += kQ8Dims) {
      const Q8Values rounded = round_q8(values + i);
      for (int d = 0; d < kQ8Dims; d++) values[i + d] = rounded.value(d);
    }
  }
}

void write_kv(Isa, const KvLayout& layout, uint8_t* page, int slot, const float* k, const float* v) {
  for (int head = 0; head < layout.kv_heads; head++, k += layout.head_dim, v += layout.head_dim) {
    if (layout.type == KvType::bf16) {
      write_token_bf16(HeadPage<uint16_t>(layout, page, head), slot, k, v);
    } else if (layout.type == KvType::q8) {
      Q8Page(page + 2 * half_bytes(layout) * head, layout.head_dim).write(slot, k, v);
    } else {
      write_token_f32(HeadPage<float>(layout, page, head), slot, k, v);
    }
  }
}

namespace {

template <class T>
void copy_token_of(const KvLayout& layout, const uint8_t* from, int from_slot, uint8_t* to, int to_slot) {
  const HeadPage<T> source(layout, const_cast<uint8_t*>(from), 0), target(layout, to, 0);
  constexpr int kPair = sizeof(T) == 2 ? 2 : 1;  // dimensions of a key beside each other
  for (int d = 0; d < layout.head_dim; d += kPair) std::memcpy(&target.key(to_slot, d), &source.key(from_slot, d), kPair * sizeof(T));
  for (int d = 0; d < layout.head_dim; d++) target.value(to_slot, d) = source.value(from_slot, d);
}

constexpr int kLanes = 4;  // wider vectors would be compared value by value
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Bits __attribute__((vector_size(4 * kLanes)));

/** Minimum and maximum of lanes, and of their values. */
struct LaneBounds {
  Floats low, high;

  explicit LaneBounds(const Floats& first) : low(first), high(first) {}
  void add(const Floats& values) {
    const Bits lower = values < low, higher = values > high;
    low = (Floats)((lower & (Bits)values) | (~lower & (Bits)low));
    high = (Floats)((higher & (Bits)values) | (~higher & (Bits)high));
  }
  float lowest() const {
    float result = low[0];
    for (int i = 1; i < kLanes; i++) result = low[i] < result ? low[i] : result;
    return result;
  }
  float highest() const {
    float result = high[0];
    for (int i = 1; i < kLanes; i++) result = high[i] > result ? high[i] : result;
    return result;
  }
};

/** Lanes `slot` to `slot` + 3 of one dimension of K; lanes from `tokens` on repeat the last key. */
void load_keys(const HeadPage<float>& page, int dim, int slot, int tokens, Floats& values) {
  std::memcpy(&values, &page.key(slot, dim), sizeof values);
  for (int lane = tokens - slot; lane < kLanes; lane++) values[lane] = page.key(tokens - 1, dim);
}
void load_keys(const HeadPage<uint16_t>& page, int dim, int slot, int tokens, Floats& values) {
  Bits pairs;
  std::memcpy(&pairs, &page.key(slot, dim & ~1), sizeof pairs);
  values = (Floats)(dim % 2 == 0 ? pairs << 16 : pairs & -65536);
  for (int lane = tokens - slot; lane < kLanes; lane++) values[lane] = widen(page.key(tokens - 1, dim));
}

void store_key(float value, float& key) { key = value; }
void store_key(float value, uint16_t& key) { key = float_to_bf16(value); }

template <class T>
void write_key_bounds_of(const KvLayout& layout, const uint8_t* share, int tokens, uint8_t* bounds, int place) {
  const HeadPage<T> page(layout, const_cast<uint8_t*>(share), 0), maxima(layout, bounds, 0), minima(layout, bounds + half_bytes(layout), 0);
  for (int d = 0; d < layout.head_dim; d++) {
    Floats keys;
    load_keys(page, d, 0, tokens, keys);
    LaneBounds lanes(keys);
    for (int slot = kLanes; slot < tokens; slot += kLanes) {
      load_keys(page, d, slot, tokens, keys);
      lanes.add(keys);
    }
    store_key(lanes.lowest(), minima.key(place, d));
    store_key(lanes.highest(), maxima.key(place, d));
  }
}

}  // namespace

void copy_token(KvType type, int head_dim, const uint8_t* from, int from_slot, uint8_t* to, int to_slot) {
  const KvLayout layout = {type, 1, head_dim};
  if (type == KvType::bf16) {
    copy_token_of<uint16_t>(layout, from, from_slot, to, to_slot);
  } else if (type == KvType::q8) {
    Q8Page(const_cast<uint8_t*>(from), head_dim).copy_token(from_slot, Q8Page(to, head_dim), to_slot);
  } else {
    copy_token_of<float>(layout, from, from_slot, to, to_slot);
  }
}

void write_key_bounds(KvType type, int head_dim, const uint8_t* share, int tokens, uint8_t* bounds, int place) {
  const KvLayout layout = {type, 1, head_dim};
  if (type == KvType::bf16) {
    write_key_bounds_of<uint16_t>(layout, share, tokens, bounds, place);
  } else {
    write_key_bounds_of<float>(layout, share, tokens, bounds, place);
  }
}

void read_page(Isa, const KvLayout& layout, const uint8_t* page, float* out) {
  size_t head_values = kPageTokens * static_cast<size_t>(layout.head_dim);
  auto* bytes = const_cast<uint8_t*>(page);  // HeadPage only reads here
  for (int head = 0; head < layout.kv_heads; head++) {
    float* k = out + head_values * head;
    float* v = k + head_values * layout.kv_heads;
    if (layout.type == KvType::bf16) {
      read_head(HeadPage<uint16_t>(layout, bytes, head), k, v);
    } else if (layout.type == KvType::q8) {
      const Q8Page share(bytes + 2 * half_bytes(layout) * head, layout.head_dim);
      for (int slot = 0; slot < kPageTokens; slot++) share.read(slot, k + slot * layout.head_dim, v + slot * layout.head_dim);
    } else {
      read_head(HeadPage<float>(layout, bytes, head), k, v);
    }
  }
}

void write_page(Isa isa, const KvLayout& layout, uint8_t* page, const float* values) {
  size_t head_values = kPageTokens * static_cast<size_t>(layout.head_dim);
  KvLayout one_head{layout.type, 1, layout.head_dim};
  for (int head = 0; head < layout.kv_heads; head++) {
    const float* k = values + head_values * head;
    const float* v = k + head_values * layout.kv_heads;
    uint8_t* share = page + one_head.page_bytes() * head;
    for (int slot = 0; slot < kPageTokens; slot++) write_kv(isa, one_head, share, slot, k + slot * layout.head_dim, v + slot * layout.head_dim);
  }
}

}  // namespace kvasir
