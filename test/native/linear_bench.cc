// Times the linear layers of a forward pass of a Llama-shaped model, with the rounding of inputs and nothing else.
// linear_bench [model 135m|1b] [type] [threads] [repeats]: one line per input form; medians (BEST=1: minima) in ms for
// 1, 8, 32 and 512 tokens (TOKENS=n: for n). FORM=f32 selects one form.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "linear/linear.hpp"

using namespace kvasir;

namespace {

struct Shape {
  int hidden, ffn, qkv, layers, vocabulary;
};

constexpr Shape k135m{576, 1536, 960, 30, 49152};
constexpr Shape k1b{2048, 8192, 3072, 16, 32000};
constexpr const char* kTypeNames[] = {"f32", "f16", "bf16", "q4_0", "q4_1", "q8_0"};
constexpr const char* kFormNames[] = {"f32", "bf16", "int8", "i16"};

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

size_t stored_bytes(TensorType type, int columns) {
  size_t n = static_cast<size_t>(columns);
  switch (type) {
    case TensorType::q4_0: return n / 32 * 18;
    case TensorType::q4_1: return n / 32 * 20;
    case TensorType::q8_0: return n / 32 * 34;
    default: return n * (type == TensorType::f32 ? 4 : 2);
  }
}

/** Random values with small scales and exponents. */
std::vector<uint8_t> random_row(TensorType type, int columns, unsigned seed) {
  std::vector<uint8_t> row(stored_bytes(type, columns));
  for (size_t i = 0; i < row.size(); i++) row[i] = static_cast<uint8_t>((i + seed) * 2654435761u >> 13);
  size_t block = type == TensorType::q4_0 ? 18 : type == TensorType::q4_1 ? 20 : type == TensorType::q8_0 ? 34 : 0;
  for (size_t i = 0; block && i < row.size(); i += block) {
    const uint16_t d = 0x1800, m = 0x9c00;
    std::memcpy(&row[i], &d, 2);
    if (type == TensorType::q4_1) std::memcpy(&row[i + 2], &m, 2);
  }
  size_t size = type == TensorType::f32 ? 4 : 2;
  for (size_t i = size - 1; !block && i < row.size(); i += size) row[i] = static_cast<uint8_t>((row[i] & 0x80) | (type == TensorType::f16 ? 0x24 : 0x3d));
  return row;
}

struct Model {
  Shape shape;
  std::vector<std::unique_ptr<Linear>> linears;

  Model(Isa isa, const Shape& s, TensorType type, InputForm form) : shape(s) {
    for (int layer = 0; layer < s.layers; layer++) {
      add(isa, type, form, s.hidden, {s.hidden, (s.qkv - s.hidden) / 2, (s.qkv - s.hidden) / 2});
      add(isa, type, form, s.hidden, {s.hidden});
      add(isa, type, form, s.hidden, {s.ffn, s.ffn});
      add(isa, type, form, s.ffn, {s.hidden});
    }
    add(isa, type, form, s.hidden, {s.vocabulary});
  }

  void add(Isa isa, TensorType type, InputForm form, int columns, const std::vector<int>& rows) {
    std::vector<SegmentSpec> specs;
    for (int r : rows) specs.push_back({type, r});
    auto linear = create_linear(isa, columns, specs, form);
    for (size_t s = 0; s < rows.size(); s++) {
      for (int r = 0; r < rows[s]; r++) linear->pack_rows(static_cast<int>(s), r, 1, random_row(type, columns, static_cast<unsigned>(r)).data());
    }
    linears.push_back(std::move(linear));
  }

  /** The head processes every row of a decode batch, and the last row of a prompt. */
  void forward(ThreadPool& pool, int tokens, std::vector<uint8_t>& input, std::vector<float>& y) const {
    for (const auto& linear : linears) {
      int rows = linear == linears.back() && tokens == 512 ? 1 : tokens;
      uint8_t* base = input.data() + (64 - reinterpret_cast<uintptr_t>(input.data()) % 64) % 64;
      int parts = std::min(rows, pool.size() * 4);
      pool.run(parts, [&](int part, int) {
        for (int t = rows * part / parts; t < rows * (part + 1) / parts; t++) {
          write_input_row(linear->isa, linear->inputs, linear->columns, base, t, values.data() + (t % 7));
        }
      });
      linear->run(pool, base, rows, nullptr, y.data(), static_cast<size_t>(linear->rows));
    }
  }

  std::vector<float> values;
};

double median_forward(const Model& model, ThreadPool& pool, int tokens, int repeats) {
  const Shape& s = model.shape;
  std::vector<uint8_t> input(input_bytes(model.linears[0]->isa, model.linears[0]->inputs, s.ffn, tokens) + 64);
  size_t widest = static_cast<size_t>(std::max(2 * s.ffn, s.qkv));
  std::vector<float> y(std::max(static_cast<size_t>(tokens) * widest, static_cast<size_t>(tokens == 512 ? 1 : tokens) * static_cast<size_t>(s.vocabulary)));
  std::vector<double> times;
  for (int r = 0; r <= repeats; r++) {
    double start = now_ms();
    model.forward(pool, tokens, input, y);
    if (r > 0) times.push_back(now_ms() - start);
  }
  std::sort(times.begin(), times.end());
  return std::getenv("BEST") ? times[0] : times[times.size() / 2];
}

TensorType type_named(const char* name) {
  for (int t = 0; t < 6; t++) {
    if (std::strcmp(kTypeNames[t], name) == 0) return static_cast<TensorType>(t);
  }
  std::fprintf(stderr, "Cannot bench: no such type: %s\n", name);
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  const Shape& shape = argc > 1 && std::strcmp(argv[1], "1b") == 0 ? k1b : k135m;
  TensorType type = type_named(argc > 2 ? argv[2] : "q4_0");
  ThreadPool pool(argc > 3 ? std::atoi(argv[3]) : 2);
  int repeats = argc > 4 ? std::atoi(argv[4]) : 5;
  std::vector<int> batches = {1, 8, 32, 512};
  if (const char* only = std::getenv("TOKENS")) batches = {std::atoi(only)};
  const char* only_form = std::getenv("FORM");
  for (InputForm form : {InputForm::int8, InputForm::i16, InputForm::bf16, InputForm::f32}) {
    if (only_form ? std::strcmp(only_form, kFormNames[static_cast<int>(form)]) != 0 : form == InputForm::f32) continue;
    if (is_integer(form) && type < TensorType::q4_0) continue;
    Model model(detect_isa(), shape, type, form);
    model.values.assign(static_cast<size_t>(shape.ffn) + 7, 0);
    for (size_t i = 0; i < model.values.size(); i++) model.values[i] = static_cast<float>(i * 7919 % 2001) * 0.001f - 1.0f;
    std::printf("%s %s", kTypeNames[static_cast<int>(type)], kFormNames[static_cast<int>(form)]);
    for (int tokens : batches) std::printf(" | T%d %.2f ms", tokens, median_forward(model, pool, tokens, tokens == 512 ? repeats : 4 * repeats));
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}
