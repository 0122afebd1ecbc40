// The encoded form of a program: integers and floats in a fixed order, written by src/kernel/encode.ts, which has the
// same tables.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvasir {

constexpr int kEncodingVersion = 7;

enum class OpCode : int {
  embed = 0, norm = 1, linear = 2, glu = 3, convert = 4, qkv = 5, attention = 6, merge = 7, gather = 8, activate = 9, add = 10, softcap = 11,
  layer_ready = 12, wait_layer = 13, rows_ready = 14, wait_rows = 15,
  send_q = 16, send_kv = 17, wait_partial = 18
};
constexpr int kOpCodes = 19;

/** Reads integers and floats in order. @throws std::runtime_error if the form ends early or a value is out of range */
class EncodedReader {
 public:
  EncodedReader(const int32_t* ints, size_t int_count, const double* floats, size_t float_count)
      : ints_(ints), int_count_(int_count), floats_(floats), float_count_(float_count) {}

  /** An integer in [least, limit). */
  int integer(const char* what, int64_t least, int64_t limit) {
    if (next_int_ >= int_count_) refuse(std::string("it ends before ") + what);
    const int32_t value = ints_[next_int_++];
    if (value < least || value >= limit) {
      refuse(std::string(what) + " " + std::to_string(value) + " is outside [" + std::to_string(least) + ", " + std::to_string(limit) + ")");
    }
    return value;
  }

  /** A size: at least 1, and small enough that the product of two fits 64 bits. */
  int size(const char* what) { return integer(what, 1, INT32_MAX); }

  float real(const char* what) {
    if (next_float_ >= float_count_) refuse(std::string("it ends before ") + what);
    return static_cast<float>(floats_[next_float_++]);
  }

  void finish() const {
    if (next_int_ != int_count_ || next_float_ != float_count_) refuse("data follows its last op");
  }

  [[noreturn]] static void refuse(const std::string& why) { throw std::runtime_error("Cannot create program: " + why); }

 private:
  const int32_t* ints_;
  size_t int_count_;
  const double* floats_;
  size_t float_count_;
  size_t next_int_ = 0;
  size_t next_float_ = 0;
};

}  // namespace kvasir
