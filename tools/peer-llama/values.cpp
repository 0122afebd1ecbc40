// Computes token ids and logits with llama.cpp's C API, on command, for comparison with another engine.
// values MODEL LIBRARIES [vocabulary]: prints "ready" once it is loaded, then answers each line of stdin with one line:
//   tokens HEX       ids of the UTF-8 bytes, without special tokens
//   marked HEX       ids with the special tokens that the file requires, and those in the text
//   pieces ID...     bytes of each token in hexadecimal
//   logits ID...     logits after the last of these tokens, computed from an empty context on one thread with float32 keys and values
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

constexpr int kContext = 1024;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("Cannot query the peer: " + what); }

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hex.size(); at += 2) bytes.push_back(static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16)));
  return bytes;
}

class Peer {
 public:
  Peer(const char* path, bool vocabulary_only) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = vocabulary_only;
    model_ = llama_model_load_from_file(path, params);
    if (!model_) fail(std::string("it does not load ") + path);
    vocabulary_ = llama_model_get_vocab(model_);
  }

  std::vector<llama_token> tokens(const std::string& text, bool special) const {
    std::vector<llama_token> ids(text.size() + 8);
    int count = llama_tokenize(vocabulary_, text.data(), static_cast<int>(text.size()), ids.data(), static_cast<int>(ids.size()), special, special);
    if (count < 0) fail("more tokens than bytes");
    ids.resize(count);
    return ids;
  }

  std::string piece(llama_token id) const {
    std::vector<char> bytes(1 << 16);
    int count = llama_token_to_piece(vocabulary_, id, bytes.data(), static_cast<int>(bytes.size()), 0, true);
    if (count < 0) fail("a piece is too long");
    return {bytes.data(), static_cast<size_t>(count)};
  }

  /** (vocabulary) logits, valid until the next call. */
  std::pair<const float*, int> logits(std::vector<llama_token> ids) {
    if (!context_) context_ = open_context();
    llama_memory_clear(llama_get_memory(context_), true);
    if (llama_decode(context_, llama_batch_get_one(ids.data(), static_cast<int>(ids.size()))) != 0) fail("a step failed");
    llama_synchronize(context_);
    return {llama_get_logits_ith(context_, -1), llama_vocab_n_tokens(vocabulary_)};
  }

 private:
  llama_context* open_context() const {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = kContext;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context* context = llama_init_from_model(model_, params);
    if (!context) fail("no context");
    return context;
  }

  llama_model* model_;
  const llama_vocab* vocabulary_;
  llama_context* context_ = nullptr;
};

std::vector<llama_token> read_ids(std::istream& words) {
  std::vector<llama_token> ids;
  for (llama_token id; words >> id;) ids.push_back(id);
  return ids;
}

void answer(Peer& peer, const std::string& line) {
  std::istringstream words(line);
  std::string what;
  words >> what;
  if (what == "tokens" || what == "marked") {
    std::string hex;
    words >> hex;
    for (llama_token id : peer.tokens(from_hex(hex), what == "marked")) std::printf("%d ", id);
  } else if (what == "pieces") {
    for (llama_token id : read_ids(words)) {
      for (unsigned char byte : peer.piece(id)) std::printf("%02x", byte);
      std::printf(" ");
    }
  } else if (what == "logits") {
    auto [values, count] = peer.logits(read_ids(words));
    for (int i = 0; i < count; i++) std::printf("%.9g ", values[i]);
  } else {
    fail("no such command: " + line);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fputs("usage: values MODEL LIBRARIES [vocabulary]\n", stderr);
    return 2;
  }
  auto log = [](ggml_log_level level, const char* text, void*) {
    if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
  };
  llama_log_set(log, nullptr);
  try {
    ggml_backend_load_all_from_path(argv[2]);
    llama_backend_init();
    Peer peer(argv[1], argc == 4);
    std::printf("ready\n");
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) answer(peer, line);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
  // Leaves without destructors: the libraries end their own threads in an order of their own.
  std::_Exit(0);
}
