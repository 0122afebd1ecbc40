// Rounding float32 rows to the input forms of linear layers.
#include "linear/input.hpp"

#include "linear/linear.hpp"
#include "simd/float_bits.hpp"

namespace kvasir {
namespace {

size_t blocks_of(int columns) { return static_cast<size_t>((columns + kBlock - 1) / kBlock); }

/** Rows at multiples of 1 KB would share few cache sets: adds an offset. */
size_t spread(size_t bytes) {
  size_t rounded = (bytes + 63) / 64 * 64;
  return rounded % 1024 == 0 ? rounded + 64 : rounded;
}

bool rounds_to_bf16_values(Isa isa, InputForm form) { return form == InputForm::bf16 && isa >= Isa::avx512; }

/** The scale of `count` values of a block. */
InputScale scale_of(const float* x, int count, float level_max) {
  uint32_t largest = 0;
  for (int k = 0; k < count; k++) {
    uint32_t magnitude = float_bits(x[k]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return {largest, level_max};
}

/** Place of value k in a block of words (see Int16Block). */
int word_at(int k) { return k % 4 == 1 ? k + 1 : k % 4 == 2 ? k - 1 : k; }

/**
 * `count` of the block's 32 values are given. A NaN or infinity makes the block's scale NaN, and so the whole output
 * row.
 */
void quantise_block(const float* x, int count, Int8Block& out) {
  const InputScale scale = scale_of(x, count, kByteMax);
  std::memset(&out, 0, sizeof out);
  for (int k = 0; scale.finite && k < count; k++) {
    int q = static_cast<int>(std::nearbyintf(x[k] * scale.inverse));
    out.values[k] = static_cast<int8_t>(q);
    out.sums[k / 16] = static_cast<int16_t>(out.sums[k / 16] + q);
  }
  int sum = out.sums[0] + out.sums[1];
  out.scale = scale.scale;
  out.scaled_sum = scale.scale * static_cast<float>(sum);
  out.minus8 = -8 * sum;
}

void quantise_block(const float* x, int count, Int16Block& out) {
  const InputScale scale = scale_of(x, count, kWordMax);
  std::memset(&out, 0, sizeof out);
  int sums[2] = {0, 0};
  for (int k = 0; scale.finite && k < count; k++) {
    int q = static_cast<int>(std::nearbyintf(x[k] * scale.inverse));
    out.values[word_at(k)] = static_cast<int16_t>(q);
    sums[k / 16] += q;
  }
  out.finish(scale.scale, sums[0], sums[1]);
  uint32_t products[2] = {0, 0};
  for (int k = 0; k < kBlock; k += 2) products[k / 16] += static_cast<uint32_t>(out.values[word_at(k)] * out.values[word_at(k + 1)]);
  out.finish_products(products[0], products[1]);
}

/** Whole blocks by the function of the instruction set, where there is one; the rest one by one. */
template <class Block>
void quantise_row(int columns, const float* x, uint8_t* row, void (*whole_blocks)(int, const float*, Block*)) {
  auto* blocks = reinterpret_cast<Block*>(row);
  const int whole = columns / kBlock;
  if (whole_blocks) whole_blocks(whole * kBlock, x, blocks);
  for (int b = whole_blocks ? whole : 0; b < whole; b++) quantise_block(x + b * kBlock, kBlock, blocks[b]);
  if (columns % kBlock != 0) quantise_block(x + whole * kBlock, columns % kBlock, blocks[whole]);
}

using QuantiseBytes = void (*)(int, const float*, Int8Block*);
using QuantiseWords = void (*)(int, const float*, Int16Block*);

QuantiseBytes quantise_bytes([[maybe_unused]] Isa isa) {
#if KVASIR_HAVE_AVX512
  if (isa >= Isa::avx512) return quantise_row_avx512;
#endif
#if KVASIR_HAVE_AVX2
  if (isa == Isa::avx2) return quantise_row_avx2;
#endif
  return nullptr;
}

QuantiseWords quantise_words([[maybe_unused]] Isa isa) {
#if KVASIR_HAVE_AVX512
  if (isa >= Isa::avx512) return quantise_words_avx512;
#endif
#if KVASIR_HAVE_AVX2
  if (isa == Isa::avx2) return quantise_words_avx2;
#endif
  return nullptr;
}

size_t integer_block_bytes(InputForm form) { return form == InputForm::int8 ? sizeof(Int8Block) : sizeof(Int16Block); }

void round_row([[maybe_unused]] Isa isa, int columns, const float* x, uint8_t* row, size_t block_bytes) {
  int done = 0;
#if KVASIR_HAVE_AVX512
  if (isa >= Isa::avx512) {
    done = columns / kBlock * kBlock;
    round_row_avx512(done, x, row, block_bytes);
  }
#endif
  for (int k = done; k < static_cast<int>(blocks_of(columns)) * kBlock; k++) {
    uint16_t h = k < columns ? float_to_bf16(x[k]) : 0;
    std::memcpy(row + static_cast<size_t>(k / kBlock) * block_bytes + static_cast<size_t>(k % kBlock) * 2, &h, 2);
  }
}

void widen_row(InputForm form, int columns, const float* x, uint8_t* row) {
  auto* out = reinterpret_cast<float*>(row);
  for (int k = 0; k < columns; k++) out[k] = form == InputForm::bf16 ? bf16_to_float(float_to_bf16(x[k])) : x[k];
  for (int k = columns; k < static_cast<int>(blocks_of(columns)) * kBlock; k++) out[k] = 0;
}

}  // namespace

InputLayout InputLayout::of(Isa isa, InputForm form, int columns) {
  size_t blocks = blocks_of(columns);
  if (is_integer(form)) {
    size_t row = spread(blocks * integer_block_bytes(form));
    return {1, row, row, integer_block_bytes(form)};
  }
  if (!rounds_to_bf16_values(isa, form)) {
    size_t row = spread(blocks * kBlock * sizeof(float));
    return {1, row, row, kBlock * sizeof(float)};
  }
  if (isa == Isa::amx) return {16, blocks * 1024, 64, 1024};
  size_t row = spread(blocks * 64);
  return {1, row, row, 64};
}

size_t input_bytes(Isa isa, InputForm form, int columns, int tokens) {
  InputLayout layout = InputLayout::of(isa, form, columns);
  return static_cast<size_t>((tokens + layout.rows - 1) / layout.rows) * layout.tile;
}

void write_input_row(Isa isa, InputForm form, int columns, void* buffer, int token, const float* x) {
  InputLayout layout = InputLayout::of(isa, form, columns);
  uint8_t* row = static_cast<uint8_t*>(buffer) + layout.offset(token);
  if (form == InputForm::int8) quantise_row(columns, x, row, quantise_bytes(isa));
  else if (form == InputForm::i16) quantise_row(columns, x, row, quantise_words(isa));
  else if (rounds_to_bf16_values(isa, form)) round_row(isa, columns, x, row, layout.block);
  else widen_row(form, columns, x, row);
}

void read_input_row(Isa isa, InputForm form, int columns, const void* buffer, int token, float* out) {
  InputLayout layout = InputLayout::of(isa, form, columns);
  const uint8_t* row = static_cast<const uint8_t*>(buffer) + layout.offset(token);
  for (int k = 0; k < columns; k++) {
    const uint8_t* block = row + static_cast<size_t>(k / kBlock) * layout.block;
    int place = k % kBlock;
    if (form == InputForm::int8) {
      auto* int8 = reinterpret_cast<const Int8Block*>(block);
      out[k] = int8->scale * static_cast<float>(int8->values[place]);
    } else if (form == InputForm::i16) {
      auto* i16 = reinterpret_cast<const Int16Block*>(block);
      out[k] = i16->scale * static_cast<float>(i16->values[word_at(place)]);
    } else if (rounds_to_bf16_values(isa, form)) {
      uint16_t h;
      std::memcpy(&h, block + 2 * place, 2);
      out[k] = bf16_to_float(h);
    } else {
      std::memcpy(&out[k], block + 4 * place, 4);
    }
  }
}

}  // namespace kvasir
