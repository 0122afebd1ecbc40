// An endpoint that answers remote attention queries: a server of this process, a reader of its pages, or a client of a
// server in another process.
#pragma once
#include <memory>

#include "remote/query.hpp"

namespace kvasir {

class RemoteAttentionEndpoint {
 public:
  virtual ~RemoteAttentionEndpoint() = default;
  /** From any thread. Every query ends answered or refused, at any later time; a dropped query may never end. */
  virtual void post(std::shared_ptr<RemoteQuery> query) = 0;
  /** Refuses open and later queries. */
  virtual void close() = 0;
  /** True if queries do not travel: the step's own threads read the lent pages in `post`. */
  virtual bool reads_in_place() const { return false; }
};

}  // namespace kvasir
