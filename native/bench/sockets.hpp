// The baseline of page transfers: one thread writes memory to a socket, another reads it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvasir {

/**
 * Seconds from the first byte sent until all have arrived, over the loopback interface, with at most `chunk_bytes` per
 * call. An untimed transfer over the same connection warms it up. The reader is pinned to `reader_cores`, if any.
 */
double bench_sockets(const uint8_t* from, uint8_t* to, size_t bytes, size_t chunk_bytes, const std::vector<int>& reader_cores);

}  // namespace kvasir
