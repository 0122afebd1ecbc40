// A coverage-guided driver for fuzz targets, for compilers without libFuzzer: the instrumentation
// `-fsanitize-coverage=trace-pc` reports each block that runs, and inputs that reach new ones are kept and mutated.
// Its arguments are those of libFuzzer: `-seed=N -max_total_time=SECONDS -artifact_prefix=PATH`, or a file to replay.
#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kBlocks = 1 << 16, kInputMost = 4096, kCorpusMost = 4000;
constexpr unsigned kHangSeconds = 60;
uint8_t hits[kBlocks];  // threads race on the counts, which need not be exact
uint8_t seen[kBlocks];
std::vector<uint8_t> current;
std::string artifact;

/** Writes the input in progress; called when the process dies. */
void save() {
  if (artifact.empty()) return;
  const int file = open(artifact.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  if (file < 0) return;
  if (write(file, current.data(), current.size()) < 0) perror("Cannot write the input");
  close(file);
}

void hang(int) {
  static const char text[] = "the input hangs\n";
  if (write(2, text, sizeof text - 1) < 0) _exit(70);
  save();
  _exit(70);
}

/** As AFL: the number of runs of a block counts by its order of magnitude. */
uint8_t bucket(uint8_t count) { return count == 0 ? 0 : count == 1 ? 1 : count == 2 ? 2 : count < 4 ? 4 : count < 8 ? 8 : count < 32 ? 16 : 32; }

bool is_new() {
  bool found = false;
  for (size_t i = 0; i < kBlocks; i++) {
    const uint8_t at = bucket(hits[i]);
    if ((at & ~seen[i]) == 0) continue;
    seen[i] |= at;
    found = true;
  }
  return found;
}

void run(const std::vector<uint8_t>& input) {
  current = input;
  std::memset(hits, 0, sizeof hits);
  alarm(kHangSeconds);
  LLVMFuzzerTestOneInput(current.data(), current.size());
  alarm(0);
}

class Mutations {
 public:
  explicit Mutations(uint64_t seed) : random_(seed) {}
  size_t below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  std::vector<uint8_t> fresh() {
    std::vector<uint8_t> input(1 + below(256));
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random_());
    return input;
  }
  std::vector<uint8_t> mutate(std::vector<uint8_t> input, const std::vector<uint8_t>& other) {
    for (size_t n = size_t{1} << below(5); n > 0; n--) change(input, other);
    if (input.size() > kInputMost) input.resize(kInputMost);
    return input;
  }

 private:
  void change(std::vector<uint8_t>& input, const std::vector<uint8_t>& other) {
    if (input.empty()) input.push_back(0);
    const size_t at = below(input.size());
    switch (below(8)) {
      case 0:
        input[at] ^= static_cast<uint8_t>(1 << below(8));
        break;
      case 1:
        input[at] = static_cast<uint8_t>(random_());
        break;
      case 2: {
        static const uint8_t kOdd[] = {0, 1, 0x7f, 0x80, 0xff, 236, 247, 248};
        input[at] = kOdd[below(8)];
        break;
      }
      case 3:
        input[at] = static_cast<uint8_t>(input[at] + below(9) - 4);
        break;
      case 4:
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), 1 + below(16), static_cast<uint8_t>(random_()));
        break;
      case 5:
        input.erase(input.begin() + static_cast<std::ptrdiff_t>(at), input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + 1 + below(16))));
        break;
      case 6: {
        const std::vector<uint8_t> piece(input.begin() + static_cast<std::ptrdiff_t>(at), input.begin() + static_cast<std::ptrdiff_t>(std::min(input.size(), at + 1 + below(32))));
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size())), piece.begin(), piece.end());
        break;
      }
      default: {
        if (other.empty()) break;
        const size_t from = below(other.size());
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      }
    }
  }

  std::mt19937_64 random_;
};

const char* value_of(const char* argument, const char* name) {
  const size_t length = std::strlen(name);
  return std::strncmp(argument, name, length) == 0 ? argument + length : nullptr;
}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  const auto at = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& count = hits[(at ^ (at >> 16)) % kBlocks];
  if (count < 255) count++;
}

int main(int count, char** arguments) {
  uint64_t seed = 1, seconds = 10;
  for (int i = 1; i < count; i++) {
    if (const char* text = value_of(arguments[i], "-seed=")) seed = std::strtoull(text, nullptr, 10);
    else if (const char* text = value_of(arguments[i], "-max_total_time=")) seconds = std::strtoull(text, nullptr, 10);
    else if (const char* text = value_of(arguments[i], "-artifact_prefix=")) artifact = std::string(text) + "crash";
    else if (arguments[i][0] != '-') {
      std::ifstream file(arguments[i], std::ios::binary);
      run(std::vector<uint8_t>(std::istreambuf_iterator<char>(file), {}));
      return 0;
    }
  }
  __sanitizer_set_death_callback(save);
  signal(SIGALRM, hang);
  signal(SIGPIPE, SIG_IGN);
  Mutations mutations(seed);
  std::vector<std::vector<uint8_t>> corpus;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  uint64_t runs = 0;
  for (; std::chrono::steady_clock::now() < end; runs++) {
    const bool fresh = corpus.size() < 8 || mutations.below(50) == 0;
    run(fresh ? mutations.fresh() : mutations.mutate(corpus[mutations.below(corpus.size())], corpus[mutations.below(corpus.size())]));
    if (!is_new()) continue;
    if (corpus.size() < kCorpusMost) corpus.push_back(current);
    else corpus[mutations.below(corpus.size())] = current;
  }
  size_t blocks = 0;
  for (const uint8_t each : seen) blocks += each != 0 ? 1 : 0;
  std::fprintf(stderr, "Done %llu runs: corpus %zu, blocks %zu\n", static_cast<unsigned long long>(runs), corpus.size(), blocks);
}
