// Where a measurement's threads run: decided by it, so that the scheduler does not.
#pragma once
#include <vector>

namespace kvasir {

/** Cores that the calling thread may run on; none where the system does not say. */
std::vector<int> allowed_cores();
/** The calling thread, and those that it starts, stay on these. Nothing happens where the system has no such thing, or the list is empty. */
void stay_on(const std::vector<int>& cores);

}  // namespace kvasir
