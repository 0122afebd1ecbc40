// A pool of pages in which sequences grow, for the attention checks, and the double-precision oracle of one row.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "attention/attention.hpp"

namespace kvasir {

struct Shape {
  KvType type;
  int kv_heads;
  int group;
  int head_dim;
  int heads() const { return kv_heads * group; }
  int row() const { return heads() * head_dim; }
};

/** The terms of a score besides scale (q . k). */
struct Rules {
  int window = kNoWindow;
  float softcap = 0;
  std::vector<float> slopes;  // (heads), or empty
};

/** Tokens of one sequence: q (tokens, heads, dim), k and v (tokens, kv_heads, dim). */
struct Tokens {
  int count;
  std::vector<float> q, k, v;
};

inline Tokens random_tokens(const Shape& shape, int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  Tokens tokens{count, std::vector<float>(static_cast<size_t>(count) * shape.row()), {}, {}};
  tokens.k.resize(static_cast<size_t>(count) * shape.kv_heads * shape.head_dim);
  tokens.v.resize(tokens.k.size());
  for (float& x : tokens.q) x = normal(random);
  for (float& x : tokens.k) x = normal(random);
  for (float& x : tokens.v) x = normal(random);
  if (shape.type == KvType::q8) {  // a scale belongs to several values, so they are rounded here, and not again by pages
    round_kv(shape.type, static_cast<int>(tokens.k.size()), tokens.k.data());
    round_kv(shape.type, static_cast<int>(tokens.v.size()), tokens.v.data());
  }
  return tokens;
}

struct Chunk {
  int sequence;
  int rows;
};

/** A pool of NaN bytes with shuffled pages, and sequences that grow in it. */
class World {
 public:
  World(Isa isa, const Shape& shape, std::vector<Tokens> sequences, int threads, Rules rules = {})
      : isa_(isa), shape_(shape), rules_(std::move(rules)), layout_{shape.type, shape.kv_heads, shape.head_dim}, sequences_(std::move(sequences)), pool_(threads) {
    int blocks = 0;
    for (const Tokens& tokens : sequences_) {
      lengths_.push_back(0);
      blocks_.emplace_back();
      for (int i = 0; i * kPageTokens < tokens.count; i++) blocks_.back().push_back(blocks++);
    }
    for (int i = 0; i < blocks; i++) pages_.push_back((i * 7919 + 3) % blocks);
    bytes_ = layout_.page_bytes() * blocks;
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(4096, (bytes_ + 4095) / 4096 * 4096));
    std::memset(memory_, 0xff, bytes_);
  }
  ~World() { std::free(memory_); }
  World(const World&) = delete;

  /** Writes the chunks' K and V, then attends, as one step. Rows of the result are in the order of chunks. */
  std::vector<float> step(const std::vector<Chunk>& chunks, std::vector<float>* max = nullptr, std::vector<float>* sum = nullptr) {
    std::vector<AttentionSequence> sequences;
    int tokens = 0;
    for (const Chunk& chunk : chunks) {
      sequences.push_back(listed(chunk.sequence, tokens, chunk.rows));
      write_tokens(chunk.sequence, chunk.rows);
      tokens += chunk.rows;
    }
    std::vector<float> queries(static_cast<size_t>(tokens) * shape_.row());
    for (size_t i = 0; i < chunks.size(); i++) {
      const Tokens& from = sequences_[chunks[i].sequence];
      std::memcpy(&queries[static_cast<size_t>(sequences[i].row) * shape_.row()], &from.q[static_cast<size_t>(sequences[i].start) * shape_.row()],
                  sizeof(float) * shape_.row() * chunks[i].rows);
    }
    return attend(sequences, queries, tokens, max, sum);
  }

  /** The next rows of a sequence, with exactly the blocks that their windows need. */
  AttentionSequence listed(int sequence, int row, int rows) const {
    const int start = lengths_[sequence];
    const int first_block = start < rules_.window ? 0 : (start - rules_.window + 1) / kPageTokens;
    return {row, rows, start, blocks_[sequence].data() + first_block, first_block};
  }

  /** Writes K and V of the next `count` tokens of a sequence. */
  void write_tokens(int sequence, int count) {
    for (int i = 0; i < count; i++) write_token(sequence, lengths_[sequence]++);
  }

  std::vector<float> attend(const std::vector<AttentionSequence>& sequences, const std::vector<float>& queries, int tokens, std::vector<float>* max,
                            std::vector<float>* sum) {
    AttentionArgs args{isa_, layout_, memory_, pages_.data(), 1, 0, shape_.heads(), scale(), sequences.data(), static_cast<int>(sequences.size()), tokens,
                       rules_.window, rules_.softcap, rules_.slopes.empty() ? nullptr : rules_.slopes.data()};
    std::vector<uint8_t> query(query_bytes(isa_, shape_.type, shape_.heads(), shape_.head_dim, tokens));
    for (int i = 0; i < tokens; i++) {
      write_query_row(isa_, shape_.type, shape_.heads(), shape_.head_dim, query.data(), i, &queries[static_cast<size_t>(i) * shape_.row()]);
    }
    size_t scratch_bytes = (attention_scratch_bytes(isa_, layout_, shape_.heads(), pool_.size(), tokens, 1 << 20) + 63) / 64 * 64;
    auto* scratch = static_cast<uint8_t*>(std::aligned_alloc(64, scratch_bytes));
    std::memset(scratch, 0xff, scratch_bytes);
    std::vector<float> out(static_cast<size_t>(tokens) * shape_.row(), NAN);
    if (max != nullptr) max->assign(static_cast<size_t>(tokens) * shape_.heads(), NAN);
    if (sum != nullptr) sum->assign(static_cast<size_t>(tokens) * shape_.heads(), NAN);
    run_attention(pool_, args, query.data(), {out.data(), max ? max->data() : nullptr, sum ? sum->data() : nullptr}, scratch);
    std::free(scratch);
    return out;
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  const std::vector<int32_t>& blocks(int sequence) const { return blocks_[sequence]; }
  ThreadPool& pool() { return pool_; }

 private:
  void write_token(int sequence, int position) {
    const Tokens& from = sequences_[sequence];
    size_t offset = static_cast<size_t>(position) * shape_.kv_heads * shape_.head_dim;
    int page = pages_[blocks_[sequence][position / kPageTokens]];
    write_kv(isa_, layout_, memory_ + layout_.page_bytes() * page, position % kPageTokens, &from.k[offset], &from.v[offset]);
  }

  Isa isa_;
  Shape shape_;
  Rules rules_;
  KvLayout layout_;
  std::vector<Tokens> sequences_;
  ThreadPool pool_;
  std::vector<int> lengths_;
  std::vector<std::vector<int32_t>> blocks_;
  std::vector<int32_t> pages_;
  size_t bytes_ = 0;
  uint8_t* memory_ = nullptr;
};

inline double rounded(float x, KvType type) {
  if (type != KvType::bf16) return x;
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

struct OracleRow {
  std::vector<double> out;  // normalised
  double max;
  double sum;
};

inline OracleRow oracle(const Shape& shape, const Tokens& tokens, int position, int head, double scale, const Rules& rules = {}) {
  const int first = position < rules.window ? 0 : position - rules.window + 1;
  std::vector<double> scores(position + 1);
  int kv_head = head / shape.group;
  auto value = [&](const std::vector<float>& from, int key, int d) {
    return rounded(from[(static_cast<size_t>(key) * shape.kv_heads + kv_head) * shape.head_dim + d], shape.type);
  };
  OracleRow row{std::vector<double>(shape.head_dim, 0.0), -INFINITY, 0.0};
  for (int key = first; key <= position; key++) {
    double dot = 0;
    for (int d = 0; d < shape.head_dim; d++) {
      dot += rounded(tokens.q[static_cast<size_t>(position) * shape.row() + head * shape.head_dim + d], shape.type) * value(tokens.k, key, d);
    }
    scores[key] = rules.softcap == 0 ? dot * scale : rules.softcap * std::tanh(dot * scale / rules.softcap);
    if (!rules.slopes.empty()) scores[key] += double{rules.slopes[head]} * (key - position);
    row.max = std::fmax(row.max, scores[key]);
  }
  for (int key = first; key <= position; key++) {
    double weight = std::exp(scores[key] - row.max);
    row.sum += weight;
    for (int d = 0; d < shape.head_dim; d++) row.out[d] += weight * value(tokens.v, key, d);
  }
  for (double& x : row.out) x /= row.sum;
  return row;
}

}  // namespace kvasir
