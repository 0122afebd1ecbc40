// The messenger under fire, for a thread sanitizer: steps that run and layers that become ready while landings are filled, stopped and closed.
// Arguments: rounds. Ends with 1 where a page holds what it should not.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "transfer/local_page_sender.hpp"

using namespace kvasir;

namespace {

constexpr int kLandings = 4, kPlaces = 16, kLayers = 8, kPages = kLandings * kPlaces;
constexpr uint8_t kMine = 0xee;

enum class Fate { complete, stopped, closed };

struct World {
  KvLayout layout{KvType::f32, 2, 8};
  std::shared_ptr<KvPool> from = std::make_shared<KvPool>(Isa::portable, layout, kPages);
  std::shared_ptr<KvPool> to = std::make_shared<KvPool>(Isa::portable, layout, kPages);
  std::atomic<int> wakes{0};
  std::shared_ptr<LandingBoard> board = std::make_shared<LandingBoard>([this] { wakes++; });
  Messenger messenger{from};
  std::mt19937 chance{1};
  int bad = 0;

  World() {
    for (int page = 0; page < kPages; page++) std::memset(from->page(page), page + 1, layout.page_bytes());
  }

  static int source(int landing, int place) { return (landing * kPlaces + place * 7) % kPages; }
  uint8_t* place(int landing, int place) const { return to->page(landing * kPlaces + place); }
  void fill(int landing, uint8_t value) {
    for (int i = 0; i < kPlaces; i++) std::memset(place(landing, i), value, layout.page_bytes());
  }
  bool holds(int landing, int place_index, uint8_t value) const {
    const uint8_t* bytes = place(landing, place_index);
    for (size_t i = 0; i < layout.page_bytes(); i++)
      if (bytes[i] != value) return false;
    return true;
  }

  std::shared_ptr<Landing> open(int number, int landing) {
    std::vector<int32_t> pages;
    for (int i = 0; i < kPlaces; i++) pages.push_back(landing * kPlaces + i);
    auto opened = std::make_shared<Landing>(to, board, pages);
    opened->set_number(number);
    return opened;
  }

  std::vector<Parcel> parcels(int landing) {
    std::vector<Parcel> all;
    for (int i = 0; i < kPlaces; i++) {
      const uint32_t step = chance() % 2 ? from->progress.next() : 0;
      all.push_back({step, static_cast<uint32_t>(chance() % kLayers), source(landing, i), i});
    }
    return all;
  }

  void round(int number) {
    const int first = number * kLandings + 1;
    std::vector<std::shared_ptr<Landing>> landings;
    Fate fates[kLandings];
    int wanted = 0;
    for (int l = 0; l < kLandings; l++) {
      fill(l, 0);
      landings.push_back(open(first + l, l));
      fates[l] = static_cast<Fate>(chance() % 3);
      wanted += fates[l] == Fate::complete;
    }
    for (int l = 0; l < kLandings; l++) messenger.send(landings[l], parcels(l), true);
    for (int l = 0; l < kLandings; l++) {
      if (fates[l] == Fate::stopped) messenger.stop(first + l);
      if (fates[l] == Fate::closed) landings[l]->close();
      // Nobody else may touch them any more.
      if (fates[l] == Fate::closed) fill(l, kMine);
    }
    await(first, fates, wanted);
    for (int l = 0; l < kLandings; l++) {
      messenger.stop(first + l);
      landings[l]->close();
      for (int i = 0; i < kPlaces; i++) {
        if (fates[l] == Fate::complete) bad += !holds(l, i, static_cast<uint8_t>(source(l, i) + 1));
        if (fates[l] == Fate::closed) bad += !holds(l, i, kMine);
      }
    }
  }

  void await(int first, const Fate* fates, int wanted) {
    int32_t out[kLandings];
    while (wanted > 0) {
      const int count = board->take(out, kLandings);
      // What was done before it was stopped or closed may be told all the same.
      for (int i = 0; i < count; i++) wanted -= out[i] >= first && fates[out[i] - first] == Fate::complete;
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
