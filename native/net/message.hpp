// Messages over a connection: a header with a checksum of its own, then a body, closed by the checksum of the body.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/checksum.hpp"
#include "net/connection.hpp"

namespace kvasir {

constexpr uint64_t kBodySeed = 12;

/** The checksum of a header: of the bytes before its field `checksum`. */
template <class Header>
uint64_t header_checksum(const Header& header, uint64_t seed) {
  return checksum(Isa::portable, &header, offsetof(Header, checksum), seed);
}

/** Sends a header and a body with its checksum, in pieces of `kReserveBytes`. */
class MessageWriter {
 public:
  MessageWriter(Connection& connection, Isa isa, Deadline deadline, const std::atomic<bool>& ended) : connection_(connection), isa_(isa), deadline_(deadline), ended_(ended) {}

  template <class Header>
  void head(const Header& header) {
    put(&header, sizeof header);
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.data(), values.size() * sizeof(T));
  }
  void add(const void* data, size_t bytes) {
    sum_ = checksum(isa_, data, bytes, sum_);
    put(data, bytes);
  }
  /** Sends the checksum. False if any part was not sent. */
  bool close() {
    put(&sum_, sizeof sum_);
    return flush();
  }

 private:
  void put(const void* data, size_t bytes) {
    const auto* from = static_cast<const uint8_t*>(data);
    while (whole_ && bytes > 0) {
      if (piece_ == nullptr) piece_ = connection_.reserve(Connection::kReserveBytes, deadline_, ended_);
      whole_ = piece_ != nullptr;
      const size_t fits = whole_ ? std::min(bytes, Connection::kReserveBytes - filled_) : 0;
      if (fits > 0) std::memcpy(piece_ + filled_, from, fits);
      filled_ += fits;
      from += fits;
      bytes -= fits;
      if (filled_ == Connection::kReserveBytes) flush();
    }
  }
  bool flush() {
    whole_ = whole_ && (filled_ == 0 || connection_.commit(filled_, deadline_, ended_));
    piece_ = nullptr;
    filled_ = 0;
    return whole_;
  }

  Connection& connection_;
  Isa isa_;
  Deadline deadline_;
  const std::atomic<bool>& ended_;
  uint8_t* piece_ = nullptr;
  size_t filled_ = 0;
  uint64_t sum_ = kBodySeed;
  bool whole_ = true;
};

/** Receives a body and computes its checksum. */
class MessageReader {
 public:
  MessageReader(const Connection& connection, Isa isa, Deadline deadline, const std::atomic<bool>& ended) : connection_(connection), isa_(isa), deadline_(deadline), ended_(ended) {}

  template <class T>
  bool receive(std::vector<T>& values, size_t count) {
    values.resize(count);
    return receive_into(values.data(), count * sizeof(T));
  }
  bool receive_into(void* data, size_t bytes) {
    const bool received = bytes == 0 || connection_.receive(data, bytes, deadline_, ended_);
    if (received) sum_ = checksum(isa_, data, bytes, sum_);
    return received;
  }
  bool receive_sum() const {
    uint64_t sum;
    return connection_.receive(&sum, sizeof sum, deadline_, ended_) && sum == sum_;
  }

 private:
  const Connection& connection_;
  Isa isa_;
  Deadline deadline_;
  const std::atomic<bool>& ended_;
  uint64_t sum_ = kBodySeed;
};

}  // namespace kvasir
