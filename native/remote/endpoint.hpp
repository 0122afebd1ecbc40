// Whoever answers queries over lent pages: a guest room of this process, or one behind a connection.
#pragma once
#include <memory>

#include "remote/query.hpp"

namespace kvasir {

class Room {
 public:
  virtual ~Room() = default;
  /** From any thread. It will be answered or refused, soon or late; what is dropped may be neither. */
  virtual void post(std::shared_ptr<GuestQuery> query) = 0;
  /** Refuses what is open and what comes. */
  virtual void close() = 0;
};

}  // namespace kvasir
