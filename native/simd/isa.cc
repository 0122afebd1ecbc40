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

bool has_amx() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  return (d & kBf16) && (d & kTile) && (d & kInt8) && request_tiles();
}

#endif

#if KVASIR_HAVE_AVX2

/** Conversions of float16. Not every compiler knows the name of this feature. */
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

Isa machine_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return Isa::portable;
  [[maybe_unused]] bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#if KVASIR_HAVE_AMX
  if (avx512 && has_amx()) return Isa::amx;
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
