// The environment of the transfer checks: two pools, a receiver, and a proxy that cuts connections and corrupts bytes.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "transfer/page_receiver.hpp"
#include "transfer/peer_page_sender.hpp"

namespace kvasir {

constexpr int kBuffers = 4, kSlots = 16, kLayers = 8, kPages = kBuffers * kSlots;
constexpr uint8_t kReused = 0xee;
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

/** Ends the program if it waits in vain: for longer than any wait on a busy machine. */
inline void await(const std::function<bool()>& done) {
  const auto deadline = in_milliseconds(60'000);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::printf("wrong: a wait does not end\n");
      std::fflush(stdout);
      std::_Exit(1);
    }
    std::this_thread::yield();
  }
}

inline std::shared_ptr<KvPool> new_pool(int pages) { return std::make_shared<KvPool>(detect_isa(), kLayout, pages); }

/** A proxy between sender and receiver that cuts connections and corrupts bytes at random. It has the key. */
class Proxy {
 public:
  Proxy(int port, Transport transport) : to_{"127.0.0.1", port}, transport_(transport), listener_({"127.0.0.1", 0}, transport, key_of(7), kLayout, [this](Connection& near, const std::atomic<bool>& ended) { serve(near, ended); }) {}
  HostPort address() const { return {"127.0.0.1", listener_.port()}; }
  /** Faults follow one in so many reads; 0: none. */
  std::atomic<uint32_t> fault_odds{0};
  std::atomic<int> faults{0};

 private:
  void serve(const Connection& near, const std::atomic<bool>& ended) {
    // One connection at a time, since there is one sender.
    const std::lock_guard<std::mutex> lock(serving_);
    const auto far = open_connection(to_, transport_, key_of(7), kLayout, 3000, ended);
    if (far == nullptr) return;
    std::atomic<bool> over{false};
    std::thread back([&] { forward(*far, near, over, ended, false); });
    forward(near, *far, over, ended, true);
    back.join();
  }

  void forward(const Connection& from, const Connection& to, std::atomic<bool>& over, const std::atomic<bool>& ended, bool faulty) {
    uint8_t bytes[4096];
    while (!ended && !over) {
      if (!from.await_readable(in_milliseconds(100), over)) continue;
      const int64_t got = from.receive_some(bytes, sizeof bytes);
      if (got == Connection::kWouldBlock) continue;
      if (got <= 0) break;
      const uint32_t odds = fault_odds;
      if (faulty && odds > 0 && chance_() % odds == 0) {
        faults++;
        if (chance_() % 2 == 0) break;
        bytes[chance_() % static_cast<uint64_t>(got)] ^= 1 << (chance_() % 8);
      }
      if (!to.send(bytes, static_cast<size_t>(got), in_milliseconds(3000), over)) break;
    }
    over = true;
    from.shut_down();
    to.shut_down();
  }

  const HostPort to_;
  const Transport transport_;
  std::mutex serving_;
  std::mt19937 chance_{3};  // of one direction's thread
  Listener listener_;
};

struct World {
  std::shared_ptr<KvPool> from = new_pool(kPages), to = new_pool(kPages);
  std::shared_ptr<CompletionQueue> queue = std::make_shared<CompletionQueue>([] {});
  const Transport transport;
  PageReceiver receiver{to, {"127.0.0.1", 0}, transport, key_of(7)};
  std::mt19937 chance{1};
  int number = 0;

  explicit World(Transport by) : transport(by) { fill_sources(); }

  void fill_sources() const {
    for (int page = 0; page < kPages; page++) std::memset(from->page(page), page + 1, kLayout.page_bytes());
  }

  static int source(int buffer, int slot) { return (buffer * kSlots + slot * 7) % kPages; }
  uint8_t* slot(int buffer, int index) const { return to->page(buffer * kSlots + index); }
  void fill(int buffer, uint8_t value) const {
    for (int i = 0; i < kSlots; i++) std::memset(slot(buffer, i), value, kLayout.page_bytes());
  }
  bool holds(int buffer, int index, uint8_t value) const {
    const uint8_t* bytes = slot(buffer, index);
    return std::all_of(bytes, bytes + kLayout.page_bytes(), [value](uint8_t byte) { return byte == value; });
  }
  bool holds_all(int buffer, uint8_t value) const {
    for (int i = 0; i < kSlots; i++)
      if (!holds(buffer, i, value)) return false;
    return true;
  }

  struct Opened {
    std::shared_ptr<ReceiveBuffer> buffer;
    RemoteReceiveBuffer remote;
  };
  Opened open(int buffer) {
    std::vector<int32_t> pages;
    for (int i = 0; i < kSlots; i++) pages.push_back(buffer * kSlots + i);
    auto opened = std::make_shared<ReceiveBuffer>(to, queue, pages);
    opened->set_number(++number);
    return {opened, {static_cast<uint32_t>(number), receiver.register_buffer(opened), kSlots}};
  }

  void await_completion(int wanted) const {
    await([&] {
      int32_t out[1];
      while (queue->take(out, 1) == 1)
        if (out[0] == wanted) return true;
      return false;
    });
  }
};

}  // namespace kvasir
