// Merging of attention partials (o, m, l) row by row, and the order in which neighbours merge.
#pragma once
#include <cstddef>

namespace kvasir {

/**
 * `rows` rows of a partial: o (rows, stride), unnormalised, max (rows) and sum (rows). An empty row has max -infinity
 * and sum 0.
 */
struct PartialRows {
  float* o;
  float* max;
  float* sum;
};

/**
 * The binary counter: the number of merges of the two topmost partials after part `index` (0-based) was pushed. Folding
 * the rest from the top at the end gives the tree in which neighbours merge level by level and an odd part moves up.
 */
inline int merges_after(int index) {
  int merges = 0;
  for (int parts = index + 1; parts % 2 == 0; parts /= 2) merges++;
  return merges;
}

constexpr int kMergeLevels = 20;  // stack levels of a tile: 2^19 ranges

}  // namespace kvasir
