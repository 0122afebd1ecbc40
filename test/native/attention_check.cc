// Checks attention on every instruction set of this machine: against a double-precision oracle, and bit for bit against
// itself over chunks, batches, threads and splits of the keys. Stale bytes are NaN. Prints one line per failure, then
// "N passed, N failed".
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attention_world.hpp"
#include "simd/amx_tiles.hpp"

using namespace kvasir;

namespace {

int passed = 0;
int failed = 0;

void expect(bool ok, const std::string& what) {
  (ok ? passed : failed)++;
  if (!ok) std::printf("FAILED %s\n", what.c_str());
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), sizeof(float) * a.size()) == 0;
}

struct Family {
  Isa isa;
  const char* name;
};

std::string describe(const Family& family, const Shape& shape, const std::string& what) {
  const char* type = shape.type == KvType::bf16 ? " bf16" : shape.type == KvType::f32 ? " f32" : " q8";
  return std::string(family.name) + type + " kv_heads " + std::to_string(shape.kv_heads) + " group " +
         std::to_string(shape.group) + " head_dim " + std::to_string(shape.head_dim) + ": " + what;
}

double largest(const std::vector<float>& values) {
  double best = 0;
  for (float x : values) best = std::fmax(best, std::fabs(x));
  return best;
}

/** Rows of one sequence, computed in chunks of `chunk`. */
std::vector<float> run_chunks(const Family& family, const Shape& shape, const Tokens& tokens, int chunk, int threads, const Rules& rules = {}) {
  World world(family.isa, shape, {tokens}, threads, rules);
  std::vector<float> all;
  for (int start = 0; start < tokens.count; start += chunk) {
    std::vector<float> rows = world.step({{0, std::min(chunk, tokens.count - start)}});
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

void check_against_oracle(const Family& family, const Shape& shape, const Tokens& tokens, const std::vector<float>& out, const std::string& what, const Rules& rules = {}) {
  double bound = (shape.type == KvType::bf16 ? 1e-3 : shape.type == KvType::q8 ? 3e-4 : 2e-6) * largest(tokens.v);
  double scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  double worst = 0;
  for (int position : {0, 1, 30, 31, 32, 33, 62, tokens.count / 2, tokens.count - 2, tokens.count - 1}) {
    if (position < 0 || position >= tokens.count) continue;
    for (int head = 0; head < shape.heads(); head++) {
      OracleRow row = oracle(shape, tokens, position, head, scale, rules);
      for (int d = 0; d < shape.head_dim; d++) {
        double error = std::fabs(out[static_cast<size_t>(position) * shape.row() + head * shape.head_dim + d] - row.out[d]);
        worst = std::isnan(error) ? INFINITY : std::fmax(worst, error);
      }
    }
  }
  expect(worst <= bound, describe(family, shape, what + " is off by " + std::to_string(worst / largest(tokens.v)) + " x max|V|"));
}

void check_shape(const Family& family, const Shape& shape, int count, const Rules& rules = {}) {
  Tokens tokens = random_tokens(shape, count, 17 * count + shape.group);
  std::vector<float> alone = run_chunks(family, shape, tokens, 1, 1, rules);
  const std::string window = rules.window == kNoWindow ? "" : ", window " + std::to_string(rules.window);
  check_against_oracle(family, shape, tokens, alone, "a sequence of " + std::to_string(count) + window, rules);
  for (int chunk : {7, 31, 512}) {
    for (int threads : {1, 2, 3}) {
      if (amx_emulated() && threads == 2) continue;  // slow
      std::string what = "chunks of " + std::to_string(chunk) + " on " + std::to_string(threads) + " threads change bits" + window;
      expect(same_bits(run_chunks(family, shape, tokens, chunk, threads, rules), alone), describe(family, shape, what));
    }
  }
}

/** Sequences of different lengths decode and prefill in the same steps; one holds NaN and infinity. */
void check_batch(const Family& family, const Shape& shape) {
  std::vector<Tokens> sequences = {random_tokens(shape, 75, 1), random_tokens(shape, amx_emulated() ? 130 : 600, 2), random_tokens(shape, 33, 3), random_tokens(shape, 40, 4)};
  for (size_t i = 0; i < 40; i++) sequences[3].v[i * shape.kv_heads * shape.head_dim] = i % 2 ? NAN : INFINITY;
  sequences[3].k[5] = NAN;
  std::vector<std::vector<float>> alone, batched(sequences.size());
  for (const Tokens& tokens : sequences) alone.push_back(run_chunks(family, shape, tokens, 1, 1));
  World world(family.isa, shape, sequences, 2);
  std::vector<int> done(sequences.size(), 0);
  for (int step = 0;; step++) {
    std::vector<Chunk> chunks;
    for (int s = 0; s < static_cast<int>(sequences.size()); s++) {
      int rows = std::min((step + s) % 3 == 0 ? 1 : 13 * (s + 1), sequences[s].count - done[s]);
      if (rows > 0) chunks.push_back({s, rows});
    }
    if (chunks.empty()) break;
    std::vector<float> out = world.step(chunks);
    size_t offset = 0;
    for (const Chunk& chunk : chunks) {
      size_t values = static_cast<size_t>(chunk.rows) * shape.row();
      batched[chunk.sequence].insert(batched[chunk.sequence].end(), out.begin() + offset, out.begin() + offset + values);
      offset += values;
      done[chunk.sequence] += chunk.rows;
    }
  }
  for (size_t s = 0; s < 3; s++) expect(same_bits(batched[s], alone[s]), describe(family, shape, "a batch changes bits of sequence " + std::to_string(s)));
  bool clean = true;
  for (float x : batched[0]) clean = clean && std::isfinite(x);
  expect(clean, describe(family, shape, "NaN spreads between sequences"));
  expect(std::isnan(batched[3].back()) || std::isnan(batched[3][batched[3].size() - shape.row()]), describe(family, shape, "a NaN of the sequence itself is lost"));
}

/** A later NaN of the same sequence does not reach earlier rows of its chunk. */
void check_causal_nan(const Family& family, const Shape& shape) {
  Tokens clean = random_tokens(shape, 70, 9);
  Tokens dirty = clean;
  size_t row = static_cast<size_t>(shape.kv_heads) * shape.head_dim;
  for (size_t i = 0; i < row; i++) dirty.k[50 * row + i] = dirty.v[50 * row + i] = NAN;
  std::vector<float> a = run_chunks(family, shape, clean, 70, 1);
  std::vector<float> b = run_chunks(family, shape, dirty, 70, 1);
  a.resize(static_cast<size_t>(50) * shape.row());
  b.resize(a.size());
  expect(same_bits(a, b), describe(family, shape, "a NaN token reaches rows before it"));
}

/** Keys distributed in aligned `share`s give the bits of one pool after the merge of their partials. */
void check_merge(const Family& family, const Shape& shape, int count, int share) {
  Tokens tokens = random_tokens(shape, count, 5);
  World world(family.isa, shape, {tokens}, 3);
  world.write_tokens(0, count);
  std::vector<float> last(tokens.q.end() - shape.row(), tokens.q.end());
  const int32_t* blocks = world.blocks(0).data();
  std::vector<float> whole = world.attend({{0, 1, count - 1, blocks, 0}}, last, 1, nullptr, nullptr);
  int holders = (count + share - 1) / share;
  std::vector<std::vector<float>> o(holders), max(holders), sum(holders);
  std::vector<Partial> parts;
  for (int i = 0; i < holders; i++) {
    int first_block = i * share / kPageTokens;
    int position = std::min(count, (i + 1) * share) - 1;  // of the last key so far
    o[i] = world.attend({{0, 1, position, blocks + first_block, first_block}}, last, 1, &max[i], &sum[i]);
    parts.push_back({o[i].data(), max[i].data(), sum[i].data()});
  }
  std::vector<float> merged(shape.row());
  merge_partials(world.pool(), parts.data(), holders, 1, shape.heads(), shape.head_dim, merged.data());
  std::string what = std::to_string(count) + " keys in shares of " + std::to_string(share) + " change bits";
  expect(same_bits(merged, whole), describe(family, shape, what));
}

void check_statistics(const Family& family, const Shape& shape, int count) {
  Tokens tokens = random_tokens(shape, count, 6);
  World world(family.isa, shape, {tokens}, 3);
  std::vector<float> max, sum;
  world.step({{0, count}}, &max, &sum);
  for (int position : {0, count / 2, count - 1}) {
    for (int head = 0; head < shape.heads(); head++) {
      OracleRow row = oracle(shape, tokens, position, head, world.scale());
      size_t place = static_cast<size_t>(position) * shape.heads() + head;
      double tolerance = shape.type == KvType::bf16 ? 1e-3 : shape.type == KvType::q8 ? 1e-4 : 4e-6;
      double max_tolerance = shape.type == KvType::q8 ? 1e-4 : 4e-6;
      expect(std::fabs(max[place] - row.max) < max_tolerance * (1 + std::fabs(row.max)), describe(family, shape, "max differs"));
      expect(std::fabs(sum[place] - row.sum) < tolerance * row.sum, describe(family, shape, "sum differs"));
    }
  }
}

/** merge_partials alone, against doubles: random statistics, some parts empty. */
void check_merge_oracle() {
  const int heads = 3, head_dim = 40, tokens = 5;
  ThreadPool pool(2);
  for (int count : {1, 2, 3, 5, 8, 13}) {
    std::mt19937 random(count);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<std::vector<float>> o(count), max(count), sum(count);
    std::vector<Partial> parts;
    for (int p = 0; p < count; p++) {
      for (int row = 0; row < tokens * heads; row++) {
        bool empty = p > 0 && (p + row) % 4 == 0;
        max[p].push_back(empty ? -INFINITY : normal(random));
        sum[p].push_back(empty ? 0.0f : 1.0f + std::fabs(normal(random)));
        for (int d = 0; d < head_dim; d++) o[p].push_back(empty ? 0.0f : normal(random) * sum[p].back());
      }
      parts.push_back({o[p].data(), max[p].data(), sum[p].data()});
    }
    std::vector<float> out(static_cast<size_t>(tokens) * heads * head_dim);
    merge_partials(pool, parts.data(), count, tokens, heads, head_dim, out.data());
    double worst = 0, scale = 0;
    for (size_t i = 0; i < out.size(); i++) {
      size_t row = i / head_dim;
      double top = -INFINITY, weights = 0, value = 0;
      for (int p = 0; p < count; p++) top = std::fmax(top, max[p][row]);
      for (int p = 0; p < count; p++) {
        double weight = std::exp(max[p][row] - top);
        weights += weight * sum[p][row];
        value += weight * o[p][i];
        if (sum[p][row] > 0) scale = std::fmax(scale, std::fabs(o[p][i] / sum[p][row]));
      }
      worst = std::fmax(worst, std::fabs(out[i] - value / weights));
    }
    expect(worst <= 2e-6 * scale, "merge of " + std::to_string(count) + " parts is off by " + std::to_string(worst / scale));
  }
}

void check_pages(const Family& family, const Shape& shape) {
  KvLayout layout{shape.type, shape.kv_heads, shape.head_dim};
  std::vector<float> values(2 * static_cast<size_t>(shape.kv_heads) * kPageTokens * shape.head_dim), back(values.size());
  for (size_t i = 0; i < values.size(); i++) values[i] = std::sin(static_cast<float>(i));
  round_kv(shape.type, static_cast<int>(values.size()), values.data());
  std::vector<uint8_t> page(layout.page_bytes());
  write_page(family.isa, layout, page.data(), values.data());
  read_page(family.isa, layout, page.data(), back.data());
  expect(same_bits(values, back), describe(family, shape, "a page does not read back"));
}

/** Every family up to the machine's best; with KVASIR_ISA=amx-emulated only the emulated one. */
std::vector<Family> families() {
  const Family all[] = {{Isa::portable, "portable"}, {Isa::avx2, "avx2"}, {Isa::avx512, "avx512"}, {Isa::amx, "amx"}};
  std::vector<Family> chosen;
  for (const Family& family : all) {
    if (family.isa <= detect_isa() && (!amx_emulated() || family.isa == Isa::amx)) chosen.push_back(family);
  }
  return chosen;
}

}  // namespace

int main() {
  check_merge_oracle();
  for (const Family& family : families()) {
    std::printf("%s\n", family.name);
    for (KvType type : {KvType::bf16, KvType::f32, KvType::q8}) {
      if (amx_emulated() && type != KvType::bf16) continue;  // these are AVX-512's kernels, checked without emulation
      const auto dims = [&](int head_dim) { return type == KvType::q8 ? (head_dim + 31) / 32 * 32 : head_dim; };
      for (const Shape& shape : {Shape{type, 1, 1, 32}, Shape{type, 3, 3, 64}, Shape{type, 1, 5, dims(80)}, Shape{type, 2, 8, 128}, Shape{type, 1, 7, dims(18)}}) {
        check_pages(family, shape);
        check_shape(family, shape, 70);
        check_batch(family, shape);
        check_causal_nan(family, shape);
      }
      check_shape(family, {type, 1, 2, 64}, amx_emulated() ? 530 : 1100);
      check_shape(family, {type, 1, 4, dims(40)}, 513);
      for (int window : {1, 31, 32, 33, 100, 512, 700}) {
        if (amx_emulated() && window > 100) continue;  // slow
        check_shape(family, {type, 1, 2, dims(48)}, window < 200 ? 160 : 1300, {window, 0, {}});
      }
      check_shape(family, {type, 2, 1, 256}, 130, {50, 5.0f, {}});
      check_shape(family, {type, 2, 4, 32}, 90, {kNoWindow, 20.0f, {}});
      check_shape(family, {type, 2, 2, 64}, 600, {kNoWindow, 0, {0.5f, 0.25f, 0.125f, 0.0625f}});
      for (int share : {512, 1024, 2048}) {
        if (type == KvType::q8 && share < 2048) continue;  // partial results have one form for all types
        check_merge(family, {type, 2, 3, 64}, 3000, share);
      }
      check_statistics(family, {type, 2, 2, dims(48)}, 700);
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
