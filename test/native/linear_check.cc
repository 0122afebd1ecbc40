// Checks the linear kernels: every type, input form and instruction set against a scalar oracle in double, and bit
// equality over batch sizes and thread counts. Prints one line per combination and exits with 1 if any failed.
// linear.test.ts compiles and runs it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "linear/linear.hpp"
#include "simd/float_bits.hpp"

using namespace kvasir;

namespace {

constexpr const char* kTypeNames[] = {"f32", "f16", "bf16", "q4_0", "q4_1", "q8_0", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};
constexpr const char* kFormNames[] = {"f32", "bf16", "int8", "i16"};
constexpr const char* kIsaNames[] = {"portable", "avx2", "avx512", "amx"};

int failures = 0;
std::mt19937 rng(7);

float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(rng); }
int below(int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); }

uint16_t float_to_f16_normal(float x) {
  uint32_t u = float_bits(x);
  return static_cast<uint16_t>(((u >> 16) & 0x8000) | ((((u >> 23) & 255) - 112) << 10) | ((u >> 13) & 1023));
}

void push(std::vector<uint8_t>& bytes, const void* p, size_t n) {
  const auto* b = static_cast<const uint8_t*>(p);
  bytes.insert(bytes.end(), b, b + n);
}

/** One stored row in GGUF bytes, and its values, decoded independently of the kernels. */
struct StoredRow {
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

void add_quantised_block(TensorType type, StoredRow& row) {
  uint16_t d = float_to_f16_normal(uniform(0.001f, 0.02f)), m = float_to_f16_normal(uniform(-0.1f, -0.01f));
  if (below(50) == 0) d = 0;
  push(row.bytes, &d, 2);
  if (type == TensorType::q4_1) push(row.bytes, &m, 2);
  uint8_t q[32];
  for (uint8_t& v : q) v = static_cast<uint8_t>(below(256));
  push(row.bytes, q, type == TensorType::q8_0 ? 32 : 16);
  for (int k = 0; k < 32; k++) {
    int nibble = k < 16 ? q[k] & 15 : q[k - 16] >> 4;
    float scale = f16_to_float(d);
    if (type == TensorType::q8_0) row.values.push_back(scale * static_cast<float>(static_cast<int8_t>(q[k])));
    else if (type == TensorType::q4_0) row.values.push_back(scale * static_cast<float>(nibble - 8));
    else row.values.push_back(std::fma(scale, static_cast<float>(nibble), f16_to_float(m)));
  }
}

/** Stored bytes of a block of the five-bit and K types, and the offsets of its f16 factors. */
struct StoredBlock {
  int inputs;
  size_t bytes, d, m;  // m: 0 if absent
};

StoredBlock stored_block(TensorType type) {
  switch (type) {
    case TensorType::q5_0: return {32, 22, 0, 0};
    case TensorType::q5_1: return {32, 24, 0, 2};
    case TensorType::q2_k: return {256, 84, 80, 82};
    case TensorType::q3_k: return {256, 110, 108, 0};
    case TensorType::q4_k: return {256, 144, 0, 2};
    case TensorType::q5_k: return {256, 176, 0, 2};
    default: return {256, 210, 208, 0};
  }
}

/** The value of input k, from loops in the order in which each type's bytes are written. */
float stored_value(TensorType type, const uint8_t* p, float d, float m, int k) {
  const int half = k / 128, quarter = k % 128 / 32, l = k % 32, part = k / 16;
  if (type == TensorType::q5_0 || type == TensorType::q5_1) {
    const uint8_t* high = p + (type == TensorType::q5_0 ? 2 : 4);
    uint32_t fifth;
    std::memcpy(&fifth, high, 4);
    int q = (k < 16 ? high[4 + k] & 15 : high[4 + k - 16] >> 4) | static_cast<int>((fifth >> k) & 1) << 4;
    return type == TensorType::q5_0 ? d * static_cast<float>(q - 16) : d * static_cast<float>(q) + m;
  }
  if (type == TensorType::q2_k) {
    int q = (p[16 + 32 * half + l] >> (2 * quarter)) & 3;
    return d * static_cast<float>(p[part] & 15) * static_cast<float>(q) - m * static_cast<float>(p[part] >> 4);
  }
  if (type == TensorType::q3_k) {
    int q = ((p[32 + 32 * half + l] >> (2 * quarter)) & 3) - ((p[l] >> (4 * half + quarter)) & 1 ? 0 : 4);
    int low = part < 8 ? p[96 + part] & 15 : p[96 + part - 8] >> 4;
    int scale = (low | ((p[104 + part % 4] >> (2 * (part / 4))) & 3) << 4) - 32;
    return d * static_cast<float>(scale) * static_cast<float>(q);
  }
  if (type == TensorType::q6_k) {
    int low = p[64 * half + 32 * (quarter % 2) + l] >> (quarter < 2 ? 0 : 4) & 15;
    int q = (low | ((p[128 + 32 * half + l] >> (2 * quarter)) & 3) << 4) - 32;
    return d * static_cast<float>(static_cast<int8_t>(p[192 + part])) * static_cast<float>(q);
  }
  const int run = k / 32;
  const uint8_t* s = p + 4;
  int scale = run < 4 ? s[run] & 63 : (s[run + 4] & 15) | (s[run - 4] >> 6) << 4;
  int minimum = run < 4 ? s[run + 4] & 63 : s[run + 4] >> 4 | (s[run] >> 6) << 4;
  int q = p[(type == TensorType::q4_k ? 16 : 48) + 32 * (run / 2) + l] >> (run % 2 == 0 ? 0 : 4) & 15;
  if (type == TensorType::q5_k) q |= ((p[16 + l] >> run) & 1) << 4;
  return d * static_cast<float>(scale) * static_cast<float>(q) - m * static_cast<float>(minimum);
}

void add_planar_block(TensorType type, StoredRow& row) {
  const StoredBlock stored = stored_block(type);
  const float units = stored.inputs == 32 ? 1.0f : 1.0f / 32;
  std::vector<uint8_t> bytes(stored.bytes);
  for (uint8_t& v : bytes) v = static_cast<uint8_t>(below(256));
  uint16_t d = below(20) == 0 ? 0 : float_to_f16_normal(units * uniform(0.004f, 0.02f));
  uint16_t m = float_to_f16_normal(units * uniform(0.01f, 0.1f) * (type == TensorType::q5_1 ? -1.0f : 1.0f));
  std::memcpy(&bytes[stored.d], &d, 2);
  if (stored.m != 0) std::memcpy(&bytes[stored.m], &m, 2);
  for (int k = 0; k < stored.inputs; k++) row.values.push_back(stored_value(type, bytes.data(), f16_to_float(d), f16_to_float(m), k));
  push(row.bytes, bytes.data(), bytes.size());
}

StoredRow random_row(TensorType type, int columns) {
  StoredRow row;
  if (type >= TensorType::q5_0) {
    for (int k = 0; k < columns; k += stored_block(type).inputs) add_planar_block(type, row);
    return row;
  }
  if (type >= TensorType::q4_0) {
    for (int b = 0; b < columns / 32; b++) add_quantised_block(type, row);
    return row;
  }
  for (int k = 0; k < columns; k++) {
    float x = uniform(-0.1f, 0.1f);
    if (std::fabs(x) < 1e-4f) x = 1e-4f;
    uint16_t h = type == TensorType::f16 ? float_to_f16_normal(x) : float_to_bf16(x);
    if (type == TensorType::f32) push(row.bytes, &x, 4);
    else push(row.bytes, &h, 2);
    row.values.push_back(type == TensorType::f32 ? x : type == TensorType::f16 ? f16_to_float(h) : bf16_to_float(h));
  }
  return row;
}

struct Case {
  Isa isa;
  InputForm form;
  int columns;
  std::vector<SegmentSpec> segments;
};

std::string name_of(const Case& c) {
  std::string text = std::string(kIsaNames[static_cast<int>(c.isa)]) + " " + kFormNames[static_cast<int>(c.form)] + " K=" + std::to_string(c.columns);
  for (const SegmentSpec& s : c.segments) text += std::string(" ") + kTypeNames[static_cast<int>(s.type)] + "x" + std::to_string(s.rows);
  return text;
}

void fail(const Case& c, const std::string& what) {
  failures++;
  std::printf("FAILED %s: %s\n", name_of(c).c_str(), what.c_str());
}

/** 64-byte aligned and exactly as long as requested, so that sanitizers detect accesses past the end. */
struct Buffer {
  void* data;
  explicit Buffer(size_t bytes) : data(std::aligned_alloc(64, (bytes + 63) / 64 * 64)) { std::memset(data, 0xff, bytes); }
  ~Buffer() { std::free(data); }
};

/** Products of `tokens` rows starting at x; checks that columns past the layer's stay unchanged. */
std::vector<float> products(const Case& c, const Linear& linear, int threads, const float* x, int tokens, const float* bias) {
  ThreadPool pool(threads);
  Buffer input(input_bytes(c.isa, c.form, c.columns, tokens));
  for (int t = 0; t < tokens; t++) write_input_row(c.isa, c.form, c.columns, input.data, t, x + static_cast<size_t>(t) * static_cast<size_t>(c.columns));
  size_t ld = static_cast<size_t>(linear.rows) + 3;
  std::vector<float> y(ld * static_cast<size_t>(tokens), -77.0f);
  linear.run(pool, input.data, tokens, bias, y.data(), ld);
  std::vector<float> out;
  for (int t = 0; t < tokens; t++) {
    const float* row = y.data() + static_cast<size_t>(t) * ld;
    out.insert(out.end(), row, row + linear.rows);
    for (int i = 0; i < 3; i++) {
      if (row[linear.rows + i] != -77.0f) fail(c, "wrote past the last column");
    }
  }
  return out;
}

struct Layer {
  std::unique_ptr<Linear> linear;
  std::vector<float> weights;  // (rows, columns)
};

Layer make_layer(const Case& c) {
  Layer layer{create_linear(c.isa, c.columns, c.segments, c.form), {}};
  size_t stored = 0;
  for (size_t s = 0; s < c.segments.size(); s++) {
    std::vector<uint8_t> bytes;
    for (int r = 0; r < c.segments[s].rows; r++) {
      StoredRow row = random_row(c.segments[s].type, c.columns);
      bytes.insert(bytes.end(), row.bytes.begin(), row.bytes.end());
      layer.weights.insert(layer.weights.end(), row.values.begin(), row.values.end());
    }
    stored += bytes.size();
    int rows = c.segments[s].rows, half = rows / 2;
    size_t row_bytes = bytes.size() / static_cast<size_t>(rows);
    layer.linear->pack_rows(static_cast<int>(s), half, rows - half, bytes.data() + row_bytes * static_cast<size_t>(half));
    layer.linear->pack_rows(static_cast<int>(s), 0, half, bytes.data());
  }
  if (c.columns >= 256 && layer.linear->rows >= 512 && layer.linear->bytes() > stored * 13 / 10) fail(c, "takes more than 1.3x the stored bytes");
  std::vector<float> row(static_cast<size_t>(c.columns));
  for (int r = 0; r < layer.linear->rows; r++) {
    layer.linear->read_row(r, row.data());
    if (std::memcmp(row.data(), &layer.weights[static_cast<size_t>(r) * row.size()], row.size() * 4) != 0) {
      fail(c, "row " + std::to_string(r) + " does not read back");
      break;
    }
  }
  return layer;
}

/** True if bf16 products round the weights too. */
bool folds(const Case& c) { return c.form == InputForm::bf16 && c.isa >= Isa::avx512; }

/** The largest error relative to the bound for that many roundings. */
void check_values(const Case& c, const Layer& layer, const std::vector<float>& x, const std::vector<float>& bias, const std::vector<float>& y, int tokens) {
  const size_t k_count = static_cast<size_t>(c.columns), n_count = static_cast<size_t>(layer.linear->rows);
  Buffer input(input_bytes(c.isa, c.form, c.columns, tokens));
  std::vector<float> seen(k_count);
  double worst = 0;
  for (int t = 0; t < tokens; t++) {
    write_input_row(c.isa, c.form, c.columns, input.data, t, &x[static_cast<size_t>(t) * k_count]);
    read_input_row(c.isa, c.form, c.columns, input.data, t, seen.data());
    for (size_t k = 0; k < k_count; k++) {
      float given = x[static_cast<size_t>(t) * k_count + k];
      float bound = c.form == InputForm::f32    ? 0
                    : c.form == InputForm::bf16 ? std::fabs(given) / 256
                                                : 3.0f / (c.form == InputForm::int8 ? 254 : 64000);
      if (std::fabs(seen[k] - given) > bound * 1.0001f) return fail(c, "an input value is rounded too far");
    }
    for (size_t n = 0; n < n_count; n++) {
      double sum = 0, magnitude = 1e-30;
      for (size_t k = 0; k < k_count; k++) {
        float w = layer.weights[n * k_count + k];
        double product = static_cast<double>(seen[k]) * static_cast<double>(folds(c) ? bf16_to_float(float_to_bf16(w)) : w);
        sum += product;
        magnitude += std::fabs(product);
      }
      sum += static_cast<double>(bias[n]);
      magnitude += std::fabs(static_cast<double>(bias[n]));
      worst = std::fmax(worst, std::fabs(sum - static_cast<double>(y[static_cast<size_t>(t) * n_count + n])) / magnitude);
    }
  }
  if (!(worst < 3e-6)) fail(c, "error " + std::to_string(worst * 1e6) + "e-6 of the sum of magnitudes");
}

void check_isolation(const Case& c, const Layer& layer, std::vector<float> x, const std::vector<float>& y, const float* bias) {
  const int tokens = 17;
  const size_t k_count = static_cast<size_t>(c.columns), n_count = static_cast<size_t>(layer.linear->rows);
  x[3 * k_count + 5] = NAN;
  x[16 * k_count] = INFINITY;
  std::vector<float> dirty = products(c, *layer.linear, 2, x.data(), tokens, bias);
  for (size_t t = 0; t < tokens; t++) {
    bool same = std::memcmp(&dirty[t * n_count], &y[t * n_count], n_count * 4) == 0;
    if (t == 3 ? !std::isnan(dirty[t * n_count]) : t != 16 && !same) return fail(c, "NaN or infinity of one row shows in row " + std::to_string(t));
  }
}

void check(const Case& c) {
  const int before = failures;
  Layer layer = make_layer(c);
  const int tokens = 100;
  const size_t k_count = static_cast<size_t>(c.columns), n_count = static_cast<size_t>(layer.linear->rows);
  std::vector<float> x(k_count * tokens), bias(n_count);
  for (float& v : x) v = uniform(-3, 3);
  for (float& v : bias) v = uniform(-1, 1);
  std::memset(&x[k_count], 0, k_count * 4);
  std::vector<float> y = products(c, *layer.linear, 1, x.data(), tokens, bias.data());
  check_values(c, layer, x, bias, y, 20);
  for (int count : {1, 2, 3, 5, 8, 13, 16, 17, 33, 64, 100}) {
    for (int threads : {1, 2, 3}) {
      int first = count < 8 ? below(tokens - count + 1) : 0;
      std::vector<float> some = products(c, *layer.linear, threads, &x[static_cast<size_t>(first) * k_count], count, bias.data());
      if (std::memcmp(some.data(), &y[static_cast<size_t>(first) * n_count], some.size() * 4) != 0) {
        fail(c, "bits of " + std::to_string(count) + " rows differ, threads " + std::to_string(threads));
      }
    }
  }
  std::vector<float> unbiased = products(c, *layer.linear, 2, x.data(), 19, nullptr);
  for (size_t i = 0; i < unbiased.size(); i++) {
    if (unbiased[i] + bias[i % n_count] != y[i]) {
      fail(c, "bias is not one addition at the end");
      break;
    }
  }
  check_isolation(c, layer, x, y, bias.data());
  if (failures == before) std::printf("ok %s\n", name_of(c).c_str());
}

/** i16 products have the same bits on every instruction set, whatever the magnitudes. */
void check_same_bits(Isa best) {
  const Isa sets[] = {Isa::portable, Isa::avx2, Isa::avx512};
  for (int type = static_cast<int>(TensorType::q4_0); type < kTensorTypes; type++) {
    const int columns = type >= static_cast<int>(TensorType::q5_0) && stored_block(static_cast<TensorType>(type)).inputs == 256 ? 768 : 672;
    const Case c{best, InputForm::i16, columns, {{static_cast<TensorType>(type), 41}}};
    const size_t k_count = static_cast<size_t>(columns);
    const int tokens = 37;
    std::vector<StoredRow> rows;
    for (int r = 0; r < 41; r++) rows.push_back(random_row(static_cast<TensorType>(type), columns));
    std::vector<float> x(k_count * tokens), bias(41), first;
    for (float& v : x) v = std::ldexp(uniform(-1, 1), below(24) - 12) * (below(9) == 0 ? 0 : 1);
    for (float& v : bias) v = uniform(-1, 1);
    for (int k = 0; k < 32; k++) x[static_cast<size_t>(k)] = k % 2 == 0 ? 1e35f : -1e35f;  // the largest levels
    for (int k = 0; k < 32; k++) x[k_count + static_cast<size_t>(k)] = std::ldexp(uniform(-1, 1), -99);
    for (Isa isa : sets) {
      if (isa > best) break;
      auto linear = create_linear(isa, columns, c.segments, InputForm::i16);
      for (int r = 0; r < 41; r++) linear->pack_rows(0, r, 1, rows[static_cast<size_t>(r)].bytes.data());
      const Case of{isa, InputForm::i16, columns, c.segments};
      for (int count : {1, 2, 4, 7, tokens}) {
        const std::vector<float> y = products(of, *linear, 2, x.data(), count, bias.data());
        if (count == tokens && first.empty()) first = y;
        if (!first.empty() && std::memcmp(y.data(), first.data(), y.size() * 4) != 0) {
          fail(of, "bits of " + std::to_string(count) + " rows differ from those of " + kIsaNames[0]);
        }
      }
    }
  }
}

void check_refusals(Isa isa, InputForm form) {
  Case c{isa, form, 64, {{TensorType::q4_0, 16}, {TensorType::f16, 16}}};
  bool refused = false;
  try {
    create_linear(c.isa, c.columns, c.segments, c.form);
  } catch (const std::exception&) {
    refused = true;
  }
  if (!refused) fail(c, "a float segment was given integer inputs");
}

void check_isa(Isa isa) {
  for (int form = 0; form < kInputForms; form++) {
    for (int type = 0; type < kTensorTypes; type++) {
      bool quantised = type >= static_cast<int>(TensorType::q4_0);
      if (is_integer(static_cast<InputForm>(form)) && !quantised) continue;
      for (int columns : {32, 96, 576, 1536}) {
        bool wide = columns == 1536;
        if (type >= static_cast<int>(TensorType::q5_0) && stored_block(static_cast<TensorType>(type)).inputs == 256) columns = (columns + 255) / 256 * 256;
        check({isa, static_cast<InputForm>(form), quantised ? columns : columns + (wide ? 5 : 0), {{static_cast<TensorType>(type), wide ? 23 : 1 + below(90)}}});
      }
    }
    auto f = static_cast<InputForm>(form);
    check({isa, f, 128, {{TensorType::q4_0, 37}, {TensorType::q8_0, 5}, {TensorType::q4_1, 64}}});
    check({isa, f, 512, {{TensorType::q4_k, 37}, {TensorType::q6_k, 5}, {TensorType::q8_0, 64}, {TensorType::q2_k, 19}}});
    if (!is_integer(f)) check({isa, f, 256, {{TensorType::bf16, 40}, {TensorType::q5_k, 7}, {TensorType::f32, 3}, {TensorType::q3_k, 50}}});
    if (!is_integer(f)) check({isa, f, 128, {{TensorType::bf16, 40}, {TensorType::q4_0, 7}, {TensorType::f16, 1}, {TensorType::f32, 50}}});
  }
  for (InputForm form : {InputForm::int8, InputForm::i16}) check_refusals(isa, form);
}

}  // namespace

int main() {
  Isa best = detect_isa();
  bool only_best = std::getenv("KVASIR_ISA") != nullptr;
  for (int isa = only_best ? static_cast<int>(best) : 0; isa <= static_cast<int>(best); isa++) check_isa(static_cast<Isa>(isa));
  check_same_bits(best);
  std::printf("best %s, %d failed\n", kIsaNames[static_cast<int>(best)], failures);
  return failures == 0 ? 0 : 1;
}
