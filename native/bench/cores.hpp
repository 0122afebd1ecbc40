// Thread affinity: a measurement chooses the cores of its threads instead of the scheduler.
#pragma once
#include <vector>

namespace kvasir {

/** Cores that the calling thread may run on; empty if unknown. */
std::vector<int> allowed_cores();
/**
 * Pins the calling thread, and the threads it starts, to these cores. Does nothing if the system has no affinity or the
 * list is empty.
 */
void set_thread_affinity(const std::vector<int>& cores);

}  // namespace kvasir
