// From products q . k of one row to softmax weights, over vector lanes. Internal linkage, as in tile.hpp.
#pragma once
#include <limits>

#include "attention/kernels/product.hpp"
#include "simd/fitted.hpp"

namespace kvasir {
namespace {

/**
 * exp(x) for x <= 0 (and a rounding error above), relative error under 2e-7; exactly 0 below -87, so no weight is
 * subnormal. exp(x) = 2^n exp(f) with |f| <= ln(2) / 2; exp(f) is a minimax polynomial.
 */
template <class Lanes>
typename Lanes::Vec exp_lanes(typename Lanes::Vec x) {
  using Vec = typename Lanes::Vec;
  Vec n = Lanes::round(Lanes::multiply(x, Lanes::set(1.44269504f)));
  Vec f = Lanes::multiply_add(n, Lanes::set(-0.693147182f), x);
  Vec p = Lanes::multiply_add(f, Lanes::set(0.00829027220f), Lanes::set(0.0418981612f));
  p = Lanes::multiply_add(p, f, Lanes::set(0.166676387f));
  p = Lanes::multiply_add(p, f, Lanes::set(0.499991477f));
  p = Lanes::multiply_add(p, f, Lanes::set(0.999999702f));
  p = Lanes::multiply_add(p, f, Lanes::set(1.0f));
  return Lanes::scale_from(x, -87.0f, p, n);
}

/** tanh(x), relative error under 5e-7; NaN stays. */
template <class Lanes>
typename Lanes::Vec tanh_lanes(typename Lanes::Vec x) {
  using Vec = typename Lanes::Vec;
  Vec size = Lanes::magnitude(x);
  Vec e = exp_lanes<Lanes>(Lanes::multiply(size, Lanes::set(-2.0f)));
  Vec large = Lanes::divide(Lanes::add(Lanes::set(1.0f), Lanes::multiply(e, Lanes::set(-1.0f))), Lanes::add(Lanes::set(1.0f), e));
  Vec square = Lanes::multiply(x, x);
  Vec p = Lanes::set(kTanhSmall[4]);
  KVASIR_UNROLL
  for (int i = 3; i >= 0; i--) p = Lanes::multiply_add(p, square, Lanes::set(kTanhSmall[i]));
  Vec small = Lanes::multiply_add(Lanes::multiply(p, square), size, size);
  return Lanes::with_sign(Lanes::select_below(size, kTanhBend, small, large), x);
}

/** Parameters that turn a product q . k into a score, besides the scale. */
struct ScoreShape {
  float scale;
  float softcap;    // 0: none
  float slope;
  float distance;   // position of key 0 minus the row's position, at most 0
};

/** Turns products of keys [from, to), whole pages, into scores: scaled, capped, and lowered by their distance. */
template <class Lanes>
void shape_scores(float* scores, int from, int to, const ScoreShape& shape) {
  alignas(64) static constexpr float kSteps[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const auto scale = Lanes::set(shape.softcap == 0 ? shape.scale : shape.scale / shape.softcap);
  for (int key = from; key < to; key += Lanes::kWidth) {
    auto score = Lanes::multiply(Lanes::load(scores + key), scale);
    if (shape.softcap != 0) score = Lanes::multiply(tanh_lanes<Lanes>(score), Lanes::set(shape.softcap));
    auto distance = Lanes::add(Lanes::load(kSteps), Lanes::set(shape.distance + static_cast<float>(key)));
    Lanes::store(scores + key, Lanes::multiply_add(distance, Lanes::set(shape.slope), score));
  }
}

/**
 * Scales one row's scores and returns the largest. Keys [first, keys) of the range are visible; scores outside them in
 * the first and last page are stale and are replaced before use. The maximum runs over lanes in page order.
 */
template <class Lanes>
float largest_score(float* scores, int first, int keys, float scale) {
  constexpr int kVectors = kPageTokens / Lanes::kWidth;
  const int start = first / kPageTokens * kPageTokens;
  const int seen = (keys + kPageTokens - 1) / kPageTokens * kPageTokens;
  for (int key = start; key < first; key++) scores[key] = -std::numeric_limits<float>::infinity();
  for (int key = keys; key < seen; key++) scores[key] = -std::numeric_limits<float>::infinity();
  typename Lanes::Vec largest[kVectors];
  KVASIR_UNROLL
  for (int n = 0; n < kVectors; n++) largest[n] = Lanes::load(scores + start + n * Lanes::kWidth);
  for (int key = start + kPageTokens; key < seen; key += kPageTokens) {
    KVASIR_UNROLL
    for (int n = 0; n < kVectors; n++) largest[n] = Lanes::max(largest[n], Lanes::load(scores + key + n * Lanes::kWidth));
  }
  KVASIR_UNROLL
  for (int n = 1; n < kVectors; n++) largest[0] = Lanes::max(largest[0], largest[n]);
  return Lanes::largest(largest[0]) * scale;
}

/**
 * Adds one row's weights exp(score - max) x inverse_sum to `sums`, keys [first, keys) of the range. Scores outside them
 * in the first and last page are stale and are replaced before use.
 */
template <class Lanes>
void add_weights(float* scores, float* sums, int first, int keys, float scale, float max, float inverse_sum) {
  const int start = first / kPageTokens * kPageTokens;
  const int seen = (keys + kPageTokens - 1) / kPageTokens * kPageTokens;
  for (int key = start; key < first; key++) scores[key] = -std::numeric_limits<float>::infinity();
  for (int key = keys; key < seen; key++) scores[key] = -std::numeric_limits<float>::infinity();
  const auto factor = Lanes::set(scale), shift = Lanes::set(-max), share = Lanes::set(inverse_sum);
  for (int key = start; key < seen; key += Lanes::kWidth) {
    const auto weight = exp_lanes<Lanes>(Lanes::multiply_add(Lanes::load(scores + key), factor, shift));
    Lanes::store(sums + key, Lanes::multiply_add(weight, share, Lanes::load(sums + key)));
  }
}

/** Turns one row's scores into weights exp(score - max) and returns their sum, which runs over lanes in page order. */
template <class Form>
float weigh_row(const float* scores, typename Form::Element* weights, int first, int keys, float scale, float max) {
  using Lanes = typename Form::Lanes;
  constexpr int kVectors = kPageTokens / Lanes::kWidth;
  const int seen = (keys + kPageTokens - 1) / kPageTokens * kPageTokens;
  auto shift = Lanes::set(-max);
  auto sums = Lanes::zero();
  for (int key = first / kPageTokens * kPageTokens; key < seen; key += kPageTokens) {
    typename Lanes::Vec page[kVectors];
    KVASIR_UNROLL
    for (int n = 0; n < kVectors; n++) {
      page[n] = exp_lanes<Lanes>(Lanes::multiply_add(Lanes::load(scores + key + n * Lanes::kWidth), Lanes::set(scale), shift));
    }
    sums = Form::store_weights(page, weights + key, sums);
  }
  return Lanes::sum(sums);
}

}  // namespace
}  // namespace kvasir
