// The messenger under fire, for a thread sanitizer: steps that run and layers that become ready while buffers are filled, stopped and closed.
// Arguments: rounds. Ends with 1 where a page holds what it should not.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "transfer/local_page_sender.hpp"

using namespace kvasir;

namespace {

constexpr int kBuffers = 4, kSlots = 16, kLayers = 8, kPages = kBuffers * kSlots;
constexpr uint8_t kMine = 0xee;

enum class AckStatus { complete, stopped, closed };

struct World {
  KvLayout layout{KvType::f32, 2, 8};
  std::shared_ptr<KvPool> from = std::make_shared<KvPool>(Isa::portable, layout, kPages);
  std::shared_ptr<KvPool> to = std::make_shared<KvPool>(Isa::portable, layout, kPages);
  std::atomic<int> wakes{0};
  std::shared_ptr<CompletionQueue> queue = std::make_shared<CompletionQueue>([this] { wakes++; });
  LocalPageSender messenger{from};
  std::mt19937 chance{1};
  int bad = 0;

  World() {
    for (int page = 0; page < kPages; page++) std::memset(from->page(page), page + 1, layout.page_bytes());
  }

  static int source(int buffer, int slot) { return (buffer * kSlots + slot * 7) % kPages; }
  uint8_t* slot(int buffer, int slot) const { return to->page(buffer * kSlots + slot); }
  void fill(int buffer, uint8_t value) {
    for (int i = 0; i < kSlots; i++) std::memset(slot(buffer, i), value, layout.page_bytes());
  }
  bool holds(int buffer, int slot_index, uint8_t value) const {
    const uint8_t* bytes = slot(buffer, slot_index);
    for (size_t i = 0; i < layout.page_bytes(); i++)
      if (bytes[i] != value) return false;
    return true;
  }

  std::shared_ptr<ReceiveBuffer> open(int number, int buffer) {
    std::vector<int32_t> pages;
    for (int i = 0; i < kSlots; i++) pages.push_back(buffer * kSlots + i);
    auto opened = std::make_shared<ReceiveBuffer>(to, queue, pages);
    opened->set_number(number);
    return opened;
  }

  std::vector<PageDescriptor> descriptors(int buffer) {
    std::vector<PageDescriptor> all;
    for (int i = 0; i < kSlots; i++) {
      const uint32_t step = chance() % 2 ? from->progress.next() : 0;
      all.push_back({step, static_cast<uint32_t>(chance() % kLayers), source(buffer, i), i});
    }
    return all;
  }

  void round(int number) {
    const int first = number * kBuffers + 1;
    std::vector<std::shared_ptr<ReceiveBuffer>> buffers;
    AckStatus fates[kBuffers];
    int wanted = 0;
    for (int l = 0; l < kBuffers; l++) {
      fill(l, 0);
      buffers.push_back(open(first + l, l));
      fates[l] = static_cast<AckStatus>(chance() % 3);
      wanted += fates[l] == AckStatus::complete;
    }
    for (int l = 0; l < kBuffers; l++) messenger.send(buffers[l], descriptors(l), true);
    for (int l = 0; l < kBuffers; l++) {
      if (fates[l] == AckStatus::stopped) messenger.stop(first + l);
      if (fates[l] == AckStatus::closed) buffers[l]->close();
      // Nobody else may touch them any more.
      if (fates[l] == AckStatus::closed) fill(l, kMine);
    }
    await(first, fates, wanted);
    for (int l = 0; l < kBuffers; l++) {
      messenger.stop(first + l);
      buffers[l]->close();
      for (int i = 0; i < kSlots; i++) {
        if (fates[l] == AckStatus::complete) bad += !holds(l, i, static_cast<uint8_t>(source(l, i) + 1));
        if (fates[l] == AckStatus::closed) bad += !holds(l, i, kMine);
      }
    }
  }

  void await(int first, const AckStatus* fates, int wanted) {
    int32_t out[kBuffers];
    while (wanted > 0) {
      const int count = queue->take(out, kBuffers);
      // What was done before it was stopped or closed may be told all the same.
      for (int i = 0; i < count; i++) wanted -= out[i] >= first && fates[out[i] - first] == AckStatus::complete;
      std::this_thread::yield();
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
  World world;
  std::atomic<bool> over{false};
  std::thread steps([&] {
    while (!over) {
      world.from->progress.begin();
      for (uint32_t layer = 1; layer <= kLayers; layer++) {
        world.from->progress.ready(layer);
        std::this_thread::yield();
      }
      world.from->progress.end();
    }
  });
  for (int i = 0; i < rounds; i++) world.round(i);
  over = true;
  steps.join();
  std::printf("%d rounds, %d bad pages\n", rounds, world.bad);
  return world.bad == 0 ? 0 : 1;
}
