// What the messenger is measured against: a thread that writes memory to a socket and one that reads it, and nothing else.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir {

/**
 * Seconds from the first byte sent until all are there, over the loopback interface, at most `chunk_bytes` a call. Before it is timed they go once over
 * the same connection, which is as warm then as one that lasts. Who reads stays on those cores, if any.
 */
double bench_sockets(const uint8_t* from, uint8_t* to, size_t bytes, size_t chunk_bytes, const std::vector<int>& reader_cores);

}  // namespace kvasir
