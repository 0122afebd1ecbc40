// Stress of local page senders, for a thread sanitizer: layers become ready in running steps while receive buffers are
// filled, stopped and closed. Argument: rounds. Exits with 1 if a page holds wrong bytes.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "transfer/local_page_sender.hpp"

using namespace kvasir;

namespace {

constexpr int kBuffers = 4, kSlots = 16, kLayers = 8, kPages = kBuffers * kSlots;
constexpr uint8_t kReused = 0xee;

enum class End { complete, stopped, closed };

struct World {
  KvLayout layout{KvType::f32, 2, 8};
  std::shared_ptr<KvPool> from = std::make_shared<KvPool>(Isa::portable, layout, kPages);
  std::shared_ptr<KvPool> to = std::make_shared<KvPool>(Isa::portable, layout, kPages);
  std::atomic<int> wakes{0};
  std::shared_ptr<CompletionQueue> queue = std::make_shared<CompletionQueue>([this] { wakes++; });
  LocalPageSender sender{from};
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
    End ends[kBuffers];
    int wanted = 0;
    for (int l = 0; l < kBuffers; l++) {
      fill(l, 0);
      buffers.push_back(open(first + l, l));
      ends[l] = static_cast<End>(chance() % 3);
      wanted += ends[l] == End::complete;
    }
    for (int l = 0; l < kBuffers; l++) sender.send(buffers[l], descriptors(l), true);
    for (int l = 0; l < kBuffers; l++) {
      if (ends[l] == End::stopped) sender.stop(first + l);
      if (ends[l] == End::closed) buffers[l]->close();
      // The sender may not read the pages any more.
      if (ends[l] == End::closed) fill(l, kReused);
    }
    await(first, ends, wanted);
    for (int l = 0; l < kBuffers; l++) {
      sender.stop(first + l);
      buffers[l]->close();
      for (int i = 0; i < kSlots; i++) {
        if (ends[l] == End::complete) bad += !holds(l, i, static_cast<uint8_t>(source(l, i) + 1));
        if (ends[l] == End::closed) bad += !holds(l, i, kReused);
      }
    }
  }

  void await(int first, const End* ends, int wanted) {
    int32_t out[kBuffers];
    while (wanted > 0) {
      const int count = queue->take(out, kBuffers);
      // A transfer that completed before it was stopped or closed may be reported too.
      for (int i = 0; i < count; i++) wanted -= out[i] >= first && ends[out[i] - first] == End::complete;
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
