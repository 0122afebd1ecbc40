// An endpoint that answers remote attention queries: a server of this process, a client of a server in another process,
// or a reader of the pages of either.
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
  /** True if rows do not travel: `post` computes with the step's own threads, once `is_ready`. */
  virtual bool reads_pages() const { return false; }
  /** Starts to fetch what `post` of this query will read. Queries of one attention op have the same `op`. */
  virtual void prepare(const RemoteQuery&, uint64_t /*op*/) {}
  /** False while pages that `post` of this query will read are on their way. */
  virtual bool is_ready(const RemoteQuery&) const { return true; }
};

}  // namespace kvasir
