// Detection of the best instruction set of this machine.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "base/types.hpp"
#include "simd/amx_tiles.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvasir {
namespace {

#if KVASIR_HAVE_AVX2

/** The registers of a cpuid leaf; zeros where the machine lacks it. */
struct CpuidLeaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
  CpuidLeaf(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d); }
};

bool has_all(unsigned found, unsigned required) { return (found & required) == required; }

/** Register states that the operating system saves (XCR0). */
unsigned saved_states(const CpuidLeaf& features) {
  if ((features.c & bit_OSXSAVE) == 0) return 0;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr unsigned kAvxState = 0x6, kAvx512State = 0xe6;

#if KVASIR_HAVE_AMX

/** A process must request tile state once; its threads inherit the permission. */
bool request_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_amx(const CpuidLeaf& extended) {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  return has_all(extended.d, kBf16 | kTile | kInt8) && request_tiles();
}

#endif

/** Reads cpuid itself: __builtin_cpu_supports depends on the compiler's runtime, and that of zig reports no features. */
Isa machine_isa() {
  const CpuidLeaf features(1, 0), extended(7, 0), more(7, 1);
  const unsigned states = saved_states(features);
  constexpr unsigned kAvx2 = 1u << 5;
  if (!has_all(features.c, bit_AVX | bit_FMA | bit_F16C) || !has_all(extended.b, kAvx2) || !has_all(states, kAvxState)) return Isa::portable;
  constexpr unsigned kAvx512FBwVlDq = 1u << 16 | 1u << 30 | 1u << 31 | 1u << 17, kVnni = 1u << 11, kBf16 = 1u << 5;
  [[maybe_unused]] const bool avx512 =
      has_all(extended.b, kAvx512FBwVlDq) && has_all(extended.c, kVnni) && has_all(more.a, kBf16) && has_all(states, kAvx512State);
#if KVASIR_HAVE_AMX
  if (avx512 && has_amx(extended)) return Isa::amx;
#endif
#if KVASIR_HAVE_AVX512
  if (avx512) return Isa::avx512;
#endif
  return Isa::avx2;
}

#else

Isa machine_isa() { return Isa::portable; }

#endif

bool named(const char* value, const char* name) { return value && std::string(value) == name; }

/** The bound set by KVASIR_ISA. */
Isa isa_bound() {
  const char* value = std::getenv("KVASIR_ISA");
  if (!value || !*value || named(value, "amx")) return Isa::amx;
  if (named(value, "avx512")) return Isa::avx512;
  if (named(value, "avx2")) return Isa::avx2;
  if (named(value, "portable")) return Isa::portable;
  throw std::invalid_argument("Cannot select instruction set: KVASIR_ISA must be portable, avx2, avx512, amx or amx-emulated: " + std::string(value));
}

}  // namespace

bool amx_emulated() {
  static const bool emulated = named(std::getenv("KVASIR_ISA"), "amx-emulated");
  return emulated;
}

Isa detect_isa() {
  Isa machine = machine_isa();
  if (amx_emulated()) {
    if (machine >= Isa::avx512) return Isa::amx;
    throw std::invalid_argument("Cannot emulate AMX: the kernels around it need AVX-512");
  }
  Isa bound = isa_bound();
  return bound < machine ? bound : machine;
}

}  // namespace kvasir
