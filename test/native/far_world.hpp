// What the checks of the messenger between processes run in: two pools and a receiver, and a wire between them that cuts connections and changes bytes.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "transfer/page_receiver.hpp"

namespace kvasir {

constexpr int kLandings = 4, kPlaces = 16, kLayers = 8, kPages = kLandings * kPlaces;
constexpr uint8_t kMine = 0xee;
constexpr size_t kFrameBytes = 1 << 15;
inline const KvLayout kLayout = {KvType::f32, 2, 8};
inline const std::atomic<bool> kNeverEnded{false};

inline int failures = 0;
inline void expect(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\n", what);
  failures++;
}

inline HashKey key_of(uint8_t byte) {
  HashKey key;
  key.fill(byte);
  return key;
}

inline void await(const std::function<bool()>& done) {
  while (!done()) std::this_thread::yield();
}

inline std::shared_ptr<KvPool> new_pool(int pages) { return std::make_shared<KvPool>(detect_isa(), kLayout, pages); }

/** Stands between the two, cuts connections and changes bytes, by chance. It knows the key. */
class Wire {
 public:
  Wire(int port, Way way) : to_{"127.0.0.1", port}, way_(way), listener_({"127.0.0.1", 0}, way, key_of(7), kLayout, [this](Line& near, const std::atomic<bool>& ended) { serve(near, ended); }) {}
  HostPort address() const { return {"127.0.0.1", listener_.port()}; }
  /** One in so many reads is followed by harm; 0: none. */
  std::atomic<uint32_t> harm{0};
  std::atomic<int> harmed{0};

 private:
  void serve(const Line& near, const std::atomic<bool>& ended) {
    // One at a time, as there is one sender.
    const std::lock_guard<std::mutex> lock(serving_);
    const auto far = reach(to_, way_, key_of(7), kLayout, 3000, ended);
    if (far == nullptr) return;
    std::atomic<bool> over{false};
    std::thread back([&] { forward(*far, near, over, ended, false); });
    forward(near, *far, over, ended, true);
    back.join();
  }

  void forward(const Line& from, const Line& to, std::atomic<bool>& over, const std::atomic<bool>& ended, bool harmful) {
    uint8_t bytes[4096];
    while (!ended && !over) {
      if (!from.await_readable(in_milliseconds(0), over)) continue;
      const int64_t got = from.receive_some(bytes, sizeof bytes);
      if (got == Line::kNothing) continue;
      if (got <= 0) break;
      const uint32_t odds = harm;
      if (harmful && odds > 0 && chance_() % odds == 0) {
        harmed++;
        if (chance_() % 2 == 0) break;
        bytes[chance_() % static_cast<uint64_t>(got)] ^= 1 << (chance_() % 8);
      }
      if (!to.send(bytes, static_cast<size_t>(got), in_milliseconds(3000), over)) break;
    }
    over = true;
    from.cut();
    to.cut();
  }

  const HostPort to_;
  const Way way_;
  std::mutex serving_;
  std::mt19937 chance_{3};  // of one direction's thread
  Listener listener_;
};

struct World {
  std::shared_ptr<KvPool> from = new_pool(kPages), to = new_pool(kPages);
  std::shared_ptr<LandingBoard> board = std::make_shared<LandingBoard>([] {});
  const Way way;
  PageReceiver receiver{to, {"127.0.0.1", 0}, way, key_of(7)};
  std::mt19937 chance{1};
  int number = 0;

  explicit World(Way by) : way(by) { fill_sources(); }

  void fill_sources() const {
    for (int page = 0; page < kPages; page++) std::memset(from->page(page), page + 1, kLayout.page_bytes());
  }

  static int source(int landing, int place) { return (landing * kPlaces + place * 7) % kPages; }
  uint8_t* place(int landing, int index) const { return to->page(landing * kPlaces + index); }
  void fill(int landing, uint8_t value) const {
    for (int i = 0; i < kPlaces; i++) std::memset(place(landing, i), value, kLayout.page_bytes());
  }
  bool holds(int landing, int index, uint8_t value) const {
    const uint8_t* bytes = place(landing, index);
    return std::all_of(bytes, bytes + kLayout.page_bytes(), [value](uint8_t byte) { return byte == value; });
  }
  bool holds_all(int landing, uint8_t value) const {
    for (int i = 0; i < kPlaces; i++)
      if (!holds(landing, i, value)) return false;
    return true;
  }

  struct Opened {
    std::shared_ptr<Landing> landing;
    RemoteLanding remote;
  };
  Opened open(int landing) {
    std::vector<int32_t> pages;
    for (int i = 0; i < kPlaces; i++) pages.push_back(landing * kPlaces + i);
    auto opened = std::make_shared<Landing>(to, board, pages);
    opened->set_number(++number);
    return {opened, {static_cast<uint32_t>(number), receiver.admit(opened), kPlaces}};
  }

  void await_landed(int wanted) const {
    await([&] {
      int32_t out[1];
      while (board->take(out, 1) == 1)
        if (out[0] == wanted) return true;
      return false;
    });
  }
};

}  // namespace kvasir
