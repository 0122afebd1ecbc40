// Measurements of attention: pools of shuffled pages, timing, the read roof.
#include "bench/attention.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "bench/linear.hpp"
#include "bench/peak.hpp"
#include "sparse/scoring.hpp"

#if defined(__linux__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace kvasir {
namespace {

double now_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class F>
std::vector<double> time_runs(int repetitions, F run) {
  run();  // warm-up: page faults and thread start
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; i++) {
    double start = now_seconds();
    run();
    seconds.push_back(now_seconds() - start);
  }
  return seconds;
}

/** Anonymous memory on huge pages, if the system has them. */
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

constexpr size_t kRoofChunk = 1 << 18;
constexpr int kRoofAhead = 3072;  // bytes

/** Reads one chunk with eight independent sums. */
uint64_t read_chunk(const uint8_t* from, bool prefetch) {
  typedef uint64_t Lanes __attribute__((vector_size(64)));
  Lanes sums[4] = {};
  for (size_t at = 0; at < kRoofChunk; at += 256) {
    for (int i = 0; i < 4; i++) {
      Lanes line;
      std::memcpy(&line, from + at + 64 * i, 64);
      if (prefetch) __builtin_prefetch(from + at + 64 * i + kRoofAhead);
      sums[i] ^= line;
    }
  }
  Lanes all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  uint64_t result = 0;
  for (int i = 0; i < 8; i++) result ^= all[i];
  return result;
}

/** Fills the pool with copies of a page of plausible values, neither subnormal nor overflowing. */
void fill_pages(const AttentionShape& shape, const KvLayout& layout, uint8_t* pool, int pages) {
  std::vector<float> values(2 * static_cast<size_t>(layout.kv_heads) * kPageTokens * layout.head_dim);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (float& x : values) x = normal(random);
  write_page(shape.isa, layout, pool, values.data());
  size_t page_bytes = layout.page_bytes();
  for (int page = 1; page < pages; page++) std::memcpy(pool + page_bytes * page, pool, page_bytes);
}

/** Sequences of equal length in a pool of shuffled pages, and one step over them. */
class Scene {
 public:
  Scene(ThreadPool& threads, const AttentionShape& shape, int sequences, int context, int rows)
      : threads_(threads),
        layout_{shape.type, shape.kv_heads, shape.head_dim},
        blocks_each_((context + kPageTokens - 1) / kPageTokens),
        heads_(shape.kv_heads * shape.group),
        tokens_(sequences * rows),
        pool_(layout_.page_bytes() * blocks_each_ * sequences),
        blocks_(static_cast<size_t>(blocks_each_) * sequences),
        pages_(blocks_.size()),
        query_(query_bytes(shape.isa, shape.type, heads_, shape.head_dim, tokens_)),
        out_(static_cast<size_t>(tokens_) * heads_ * shape.head_dim),
        scratch_(attention_scratch_bytes(shape.isa, layout_, heads_, threads.size(), tokens_, context)) {
    for (size_t i = 0; i < blocks_.size(); i++) blocks_[i] = pages_[i] = static_cast<int32_t>(i);
    std::mt19937 random(7);
    std::shuffle(pages_.begin(), pages_.end(), random);
    fill_pages(shape, layout_, pool_.data(), static_cast<int>(pages_.size()));
    fill_queries(shape, random);
    for (int i = 0; i < sequences; i++) {
      sequences_.push_back({i * rows, rows, context - rows, blocks_.data() + static_cast<size_t>(i) * blocks_each_, 0});
    }
    float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args_ = {shape.isa, layout_, pool_.data(), pages_.data(), 1, 0, heads_, scale, sequences_.data(), sequences, tokens_};
  }

  void run() { run_attention(threads_, args_, query_.data(), {out_.data(), nullptr, nullptr}, scratch_.data()); }
  const AttentionArgs& args() const { return args_; }

  /** Attention with the statistics that scoring takes. */
  void run_with_statistics() {
    statistics_.resize(static_cast<size_t>(tokens_) * heads_ * 2);
    run_attention(threads_, args_, query_.data(), {out_.data(), statistics_.data(), statistics_.data() + statistics_.size() / 2, true}, scratch_.data());
  }
  void score() {
    const AttentionSequence& sequence = sequences_[0];
    key_scores_.resize(static_cast<size_t>(layout_.kv_heads) * (sequence.start + sequence.rows));
    const std::vector<KeyScoring> list = {{sequence, 0, key_scores_.data(), nullptr, 0.0f, HeadReduce::mean}};
    score_keys(threads_, args_, query_.data(), statistics_.data(), statistics_.data() + statistics_.size() / 2, list, scoring_memory_);
  }

 private:
  void fill_queries(const AttentionShape& shape, std::mt19937& random) {
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<float> row(static_cast<size_t>(heads_) * shape.head_dim);
    for (int token = 0; token < tokens_; token++) {
      for (float& x : row) x = normal(random);
      write_query_row(shape.isa, shape.type, heads_, shape.head_dim, query_.data(), token, row.data());
    }
  }

  ThreadPool& threads_;
  KvLayout layout_;
  int blocks_each_;
  int heads_;
  int tokens_;
  Memory pool_;
  std::vector<int32_t> blocks_;
  std::vector<int32_t> pages_;
  std::vector<uint8_t> query_;
  std::vector<float> out_;
  Memory scratch_;
  std::vector<AttentionSequence> sequences_;
  AttentionArgs args_{};
  std::vector<float> statistics_, key_scores_;
  GrowingMemory scoring_memory_;
};

}  // namespace

double read_roof(ThreadPool& pool, size_t bytes, int repetitions) {
  int chunks = static_cast<int>(bytes / kRoofChunk);
  Memory memory(bytes + kRoofAhead);
  std::memset(memory.data(), 1, bytes);
  std::vector<uint64_t> sinks(pool.size() * 8);
  double best = 0;
  for (bool prefetch : {false, true}) {
    // Two patterns, of which the faster counts: neighbouring chunks at once, or one contiguous part per thread.
    for (bool stretches : {false, true}) {
      int stretch = stretches ? (chunks + pool.size() - 1) / pool.size() : 1;
      auto task = [&](int index, int thread) {
        for (int chunk = index * stretch; chunk < std::min(chunks, (index + 1) * stretch); chunk++) {
          sinks[thread * 8] ^= read_chunk(memory.data() + kRoofChunk * chunk, prefetch);
        }
      };
      std::vector<double> seconds = time_runs(repetitions, [&] { pool.run((chunks + stretch - 1) / stretch, task); });
      best = std::max(best, static_cast<double>(kRoofChunk) * chunks / median(seconds));
    }
  }
  volatile uint64_t keep = sinks[0];
  (void)keep;
  return best;
}

double attention_peak(ThreadPool& pool, Isa isa, KvType type) {
  if (type == KvType::q8) return product_peak(pool, isa, InputForm::i16);
  PeakLoop loop = find_peak_loop(isa, type);
  constexpr int kIterations = 4000000;
  auto task = [&](int, int) { loop.run(kIterations); };
  std::vector<double> seconds = time_runs(3, [&] { pool.run(pool.size(), task); });
  return loop.flops_per_iteration * kIterations * pool.size() / *std::min_element(seconds.begin(), seconds.end());
}

DecodeFigure bench_decode(ThreadPool& pool, const AttentionShape& shape, int context, size_t pool_bytes, int repetitions) {
  KvLayout layout{shape.type, shape.kv_heads, shape.head_dim};
  double sequence_bytes = static_cast<double>(layout.page_bytes()) / kPageTokens * context;
  int sequences = std::max(1, static_cast<int>(std::ceil(static_cast<double>(pool_bytes) / sequence_bytes)));
  Scene scene(pool, shape, sequences, context, 1);
  double seconds = median(time_runs(repetitions, [&] { scene.run(); }));
  return {seconds, sequence_bytes * sequences, sequences, attention_split(scene.args(), pool.size())};
}

PrefillFigure bench_prefill(ThreadPool& pool, const AttentionShape& shape, int queries, int context, int repetitions) {
  Scene scene(pool, shape, 1, context, queries);
  double seconds = median(time_runs(repetitions, [&] { scene.run(); }));
  double pairs = static_cast<double>(queries) * (context - queries) + static_cast<double>(queries) * (queries + 1) / 2;
  return {seconds, 4 * pairs * shape.head_dim * shape.kv_heads * shape.group, attention_split(scene.args(), pool.size())};
}

ScoringFigure bench_scoring(ThreadPool& pool, const AttentionShape& shape, int observed, int context, int repetitions) {
  Scene scene(pool, shape, 1, context, observed);
  scene.run_with_statistics();
  scene.score();
  std::vector<double> attention, scoring;
  for (int i = 0; i < repetitions; i++) {
    const double start = now_seconds();
    scene.run_with_statistics();
    const double middle = now_seconds();
    scene.score();
    attention.push_back(middle - start);
    scoring.push_back(now_seconds() - middle);
  }
  return {median(scoring), median(attention)};
}

}  // namespace kvasir
