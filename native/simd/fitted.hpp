// Coefficients of vector functions, fitted for least relative error. Attention and the row kernels share them.
#pragma once

namespace kvasir {

/**
 * tanh(x) = x + x^3 P(x^2) below kTanhBend, relative error 8e-8 in float32; above it (1 - e) / (1 + e) with e = exp(-2
 * x).
 */
constexpr float kTanhBend = 0.625f;
constexpr float kTanhSmall[5] = {-0.333332839f, 0.133314913f, -0.0537434979f, 0.0206505861f, -0.00571704297f};

/**
 * The normal tail: erfc(x / sqrt(2)) / 2 = exp(-x^2 / 2) t P(t) with t = 1 / (1 + kTailRate x), x >= 0; relative error
 * 4e-8 up to 13.
 */
constexpr float kTailRate = 0.35f;
constexpr float kTail[9] = {0.13962166f,  0.139857569f,  0.119863035f, 0.105392367f, -0.0228439581f,
                            0.158797343f, -0.255391693f, 0.143818742f, -0.029115081f};

/** Above this x, e^(-x^2 / 2) and 1 / (1 + exp(2 sqrt(2 / pi) (x + 0.044715 x^3))) are below every normal float32. */
constexpr float kTailEnd = 14.0f;

/** 2 sqrt(2 / pi), and 0.044715 times that, each with its rounding error in float32. */
constexpr float kGeluLinear = 1.59576917f, kGeluLinearRest = -4.53406805e-08f;
constexpr float kGeluCubic = 0.0713548139f, kGeluCubicRest = 2.39883247e-09f;

}  // namespace kvasir
