// Short waits without sleeping.
#pragma once
#include <chrono>

namespace kvasir {

constexpr auto kSpin = std::chrono::microseconds(20);
constexpr int kPausesPerClockRead = 16;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/** Spins until `ready()` or for `kSpin`; returns the last answer. */
template <class Ready>
bool spin(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClockRead; i++) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace kvasir
