// The interface between the packing of stored rows and that of the types of planes.
#pragma once
#include "linear/layout.hpp"

namespace kvasir {

/** Inputs stored together: 32, or 256 if scales have a common factor. */
constexpr int stored_plane_inputs(TensorType type) { return planes_of(type).super ? kBlock * kSuperBlocks : kBlock; }
/** Their bytes. */
size_t stored_plane_bytes(TensorType type);

void pack_planar_row(const Segment& segment, int row, const uint8_t* stored);
void unpack_planar_row(const Segment& segment, int row, float* out);

}  // namespace kvasir
