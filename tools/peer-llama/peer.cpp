// Times single steps of llama.cpp with its C API, on command, so that another engine can alternate with it in one run.
// peer MODEL THREADS LIBRARIES: prints {"variant":...} once it is loaded, then answers each line of stdin with a list of milliseconds:
//   prefill FLASH TOKENS REPEATS       one step that computes TOKENS tokens into an empty context
//   decode FLASH BATCH DEPTH STEPS     steps of one token of each of BATCH sequences, DEPTH tokens in the cache (batch 1 where DEPTH > 0)
// The first step of each command is not counted. FLASH is 1 with flash attention, 0 without.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

namespace {

constexpr int kStepTokens = 512;
constexpr int kSequences = 32;
constexpr int kContext = 8192;
constexpr int kTokenIds = 30000;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("Cannot run the peer: " + what); }

/** One thread pool for all contexts and the whole run, as in llama.cpp's own programs. */
ggml_threadpool_t create_threads(int count) {
  ggml_backend_reg_t cpu = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
  auto create = reinterpret_cast<decltype(ggml_threadpool_new)*>(ggml_backend_reg_get_proc_address(cpu, "ggml_threadpool_new"));
  if (!create) fail("its CPU library has no thread pools");
  ggml_threadpool_params params = ggml_threadpool_params_default(count);
  return create(&params);
}

class Peer {
 public:
  Peer(const char* path, int threads) : threads_(threads), pool_(create_threads(threads)), batch_(llama_batch_init(kStepTokens, 0, 1)) {
    model_ = llama_model_load_from_file(path, llama_model_default_params());
    if (!model_) fail(std::string("it does not load ") + path);
  }

  std::vector<double> prefill(bool flash, int tokens, int repeats) {
    if (tokens > kStepTokens) fail("a prefill step has at most 512 tokens");
    llama_context* context = context_of(flash, 0);
    std::vector<double> times;
    for (int i = 0; i <= repeats; i++) {
      llama_memory_clear(llama_get_memory(context), true);
      fill_sequence(tokens, 0);
      times.push_back(step(context));
    }
    return {times.begin() + 1, times.end()};
  }

  std::vector<double> decode(bool flash, int batch, int depth, int steps) {
    if (depth > 0 && batch != 1) fail("a depth is for batch 1");
    llama_context* context = context_of(flash, depth);
    reach_depth(context, depth);
    std::vector<double> times;
    for (int i = 0; i <= steps; i++) {
      fill_row_each(batch, depth + i);
      times.push_back(step(context));
    }
    return {times.begin() + 1, times.end()};
  }

 private:
  /** A context of its own for each depth: its cache is filled once and then cut back. */
  llama_context* context_of(bool flash, int depth) {
    llama_context*& context = contexts_[{flash, depth}];
    if (context) return context;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = kContext;
    params.n_batch = params.n_ubatch = kStepTokens;
    params.n_seq_max = kSequences;
    params.n_threads = params.n_threads_batch = threads_;
    params.kv_unified = true;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context = llama_init_from_model(model_, params);
    if (!context) fail("no context");
    llama_attach_threadpool(context, pool_, pool_);
    return context;
  }

  void reach_depth(llama_context* context, int depth) {
    llama_memory_t memory = llama_get_memory(context);
    if (depth == 0) return llama_memory_clear(memory, true);
    int have = llama_memory_seq_pos_max(memory, 0) + 1;
    if (have >= depth) {
      llama_memory_seq_rm(memory, 0, depth, -1);
      return;
    }
    for (int at = 0; at < depth; at += kStepTokens) {
      fill_sequence(std::min(kStepTokens, depth - at), at);
      step(context);
    }
  }

  void fill_sequence(int tokens, int position) {
    batch_.n_tokens = tokens;
    for (int i = 0; i < tokens; i++) set_row(i, position + i, 0, i == tokens - 1);
  }

  void fill_row_each(int sequences, int position) {
    batch_.n_tokens = sequences;
    for (int i = 0; i < sequences; i++) set_row(i, position, i, true);
  }

  void set_row(int row, int position, int sequence, bool logits) {
    batch_.token[row] = (row * 7919 + position * 31 + 13) % kTokenIds;
    batch_.pos[row] = position;
    batch_.n_seq_id[row] = 1;
    batch_.seq_id[row][0] = sequence;
    batch_.logits[row] = logits;
  }

  double step(llama_context* context) {
    auto start = std::chrono::steady_clock::now();
    if (llama_decode(context, batch_) != 0) fail("a step failed");
    llama_synchronize(context);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

  int threads_;
  ggml_threadpool_t pool_;
  llama_batch batch_;
  llama_model* model_;
  std::map<std::pair<bool, int>, llama_context*> contexts_;
};

/** The CPU library that ggml has selected for this machine. */
std::string variant() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    size_t name = line.find("libggml-cpu-");
    if (name != std::string::npos) return line.substr(name);
  }
  return "unknown";
}

void answer(Peer& peer, const std::string& line) {
  std::istringstream words(line);
  std::string what;
  int flash = 0, first = 0, second = 0, third = 0;
  words >> what >> flash >> first >> second;
  std::vector<double> times;
  if (what == "prefill" && words) times = peer.prefill(flash, first, second);
  else if (what == "decode" && words >> third) times = peer.decode(flash, first, second, third);
  else fail("no such command: " + line);
  std::printf("[");
  for (size_t i = 0; i < times.size(); i++) std::printf("%s%.4f", i ? "," : "", times[i]);
  std::printf("]\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: peer MODEL THREADS LIBRARIES\n", stderr);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  try {
    ggml_backend_load_all_from_path(argv[3]);
    llama_backend_init();
    Peer peer(argv[1], std::atoi(argv[2]));
    std::printf("{\"variant\":\"%s\"}\n", variant().c_str());
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) answer(peer, line);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  // Leaves without destructors: the libraries end their own threads in an order of their own.
  std::_Exit(0);
}
