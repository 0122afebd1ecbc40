// The cores of a measurement's threads, chosen by the measurement instead of the scheduler.
#pragma once
#include <vector>

namespace kvasir {

/** Cores that the calling thread may run on; empty if unknown. */
std::vector<int> allowed_cores();
/**
 * Pins the calling thread, and the threads it starts, to these cores. Does nothing if the system has no affinity or the
 * list is empty.
 */
void stay_on(const std::vector<int>& cores);

}  // namespace kvasir
