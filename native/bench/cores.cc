// Thread affinity; Linux only.
#include "bench/cores.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace kvasir {

#if defined(__linux__)

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

void set_thread_affinity(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores)
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &set);
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof set, &set);
}

#else

std::vector<int> allowed_cores() { return {}; }
void set_thread_affinity(const std::vector<int>&) {}

#endif

}  // namespace kvasir
