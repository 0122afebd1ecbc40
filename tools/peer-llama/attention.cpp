// Times decode attention of ggml's CPU kernels, on command, so that another engine can alternate with it in one run.
// attention THREADS LIBRARIES: prints {"variant":...} once it is ready, then answers each line of stdin with milliseconds:
//   TYPE KV_HEADS GROUP HEAD_DIM CONTEXT SEQUENCES REPEATS   one query row of each sequence; TYPE of the cache: f16, bf16 or q8_0
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("Cannot time attention: " + what); }

struct Shape {
  ggml_type type;
  int kv_heads, group, head_dim, context, sequences;
};

/** Rows of random values in the type of the tensor, the same 64 again and again. */
void fill(ggml_tensor* tensor) {
  const int64_t columns = tensor->ne[0], rows = ggml_nrows(tensor);
  constexpr int64_t kRows = 64;
  const size_t row_bytes = ggml_row_size(tensor->type, columns);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> values(static_cast<size_t>(columns * kRows));
  for (float& x : values) x = normal(random);
  std::vector<uint8_t> bytes(row_bytes * kRows);
  if (tensor->type == GGML_TYPE_F32) std::memcpy(bytes.data(), values.data(), bytes.size());
  else ggml_quantize_chunk(tensor->type, values.data(), bytes.data(), 0, kRows, columns, nullptr);
  for (int64_t row = 0; row < rows; row += kRows) {
    ggml_backend_tensor_set(tensor, bytes.data(), row_bytes * static_cast<size_t>(row), row_bytes * static_cast<size_t>(std::min(kRows, rows - row)));
  }
}

/** One flash attention over caches in the layout of llama.cpp: heads of a token beside each other. */
class Scene {
 public:
  Scene(ggml_backend_t backend, const Shape& shape) : backend_(backend) {
    ggml_init_params params = {ggml_tensor_overhead() * 32 + ggml_graph_overhead(), nullptr, true};
    context_ = ggml_init(params);
    const int heads = shape.kv_heads * shape.group;
    ggml_tensor* q = ggml_new_tensor_4d(context_, GGML_TYPE_F32, shape.head_dim, 1, heads, shape.sequences);
    ggml_tensor* k = ggml_new_tensor_4d(context_, shape.type, shape.head_dim, shape.kv_heads, shape.context, shape.sequences);
    ggml_tensor* v = ggml_new_tensor_4d(context_, shape.type, shape.head_dim, shape.kv_heads, shape.context, shape.sequences);
    ggml_tensor* keys = ggml_permute(context_, k, 0, 2, 1, 3);
    ggml_tensor* values = ggml_permute(context_, v, 0, 2, 1, 3);
    ggml_tensor* out = ggml_flash_attn_ext(context_, q, keys, values, nullptr, 1.0f / std::sqrt(static_cast<float>(shape.head_dim)), 0.0f, 0.0f);
    graph_ = ggml_new_graph(context_);
    ggml_build_forward_expand(graph_, out);
    buffer_ = ggml_backend_alloc_ctx_tensors(context_, backend);
    if (buffer_ == nullptr) fail("no memory");
    for (ggml_tensor* tensor : {q, k, v}) fill(tensor);
  }
  ~Scene() {
    ggml_backend_buffer_free(buffer_);
    ggml_free(context_);
  }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  double run() {
    const auto start = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(backend_, graph_) != GGML_STATUS_SUCCESS) fail("the graph failed");
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  ggml_backend_t backend_;
  ggml_context* context_;
  ggml_cgraph* graph_;
  ggml_backend_buffer_t buffer_;
};

ggml_type type_of(const std::string& name) {
  if (name == "f16") return GGML_TYPE_F16;
  if (name == "bf16") return GGML_TYPE_BF16;
  if (name == "q8_0") return GGML_TYPE_Q8_0;
  fail("no such type: " + name);
}

void answer(ggml_backend_t backend, const std::string& line) {
  std::istringstream words(line);
  std::string type;
  Shape shape{};
  int repeats = 0;
  words >> type >> shape.kv_heads >> shape.group >> shape.head_dim >> shape.context >> shape.sequences >> repeats;
  if (!words) fail("no such command: " + line);
  shape.type = type_of(type);
  Scene scene(backend, shape);
  scene.run();
  std::printf("[");
  for (int i = 0; i < repeats; i++) std::printf("%s%.4f", i ? "," : "", scene.run());
  std::printf("]\n");
  std::fflush(stdout);
}

/** The CPU library that ggml has selected for this machine. */
std::string variant() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    size_t name = line.find("libggml-cpu-");
    if (name != std::string::npos) return line.substr(name);
  }
  return "unknown";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: attention THREADS LIBRARIES\n", stderr);
    return 2;
  }
  try {
    ggml_backend_load_all_from_path(argv[2]);
    ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (backend == nullptr) fail("no CPU backend");
    ggml_backend_reg_t cpu = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(cpu, "ggml_backend_set_n_threads"));
    if (set_threads != nullptr) set_threads(backend, std::atoi(argv[1]));
    std::printf("{\"variant\":\"%s\"}\n", variant().c_str());
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) answer(backend, line);
    ggml_backend_free(backend);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
