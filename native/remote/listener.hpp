// Accepts the queries of clients in other processes for a remote attention server, and returns its answers.
#pragma once
#include <memory>

#include "net/listener.hpp"
#include "remote/endpoint.hpp"
#include "remote/query_frames.hpp"

namespace kvasir {

class RemoteAttentionListener {
 public:
  /** Port 0 chooses a free port. @throws std::runtime_error if the address cannot be bound */
  RemoteAttentionListener(std::shared_ptr<RemoteAttentionEndpoint> server, const KvLayout& layout, const HostPort& address, Transport transport, const HashKey& key);
  RemoteAttentionListener(const RemoteAttentionListener&) = delete;
  RemoteAttentionListener& operator=(const RemoteAttentionListener&) = delete;

  int port() const { return listener_.port(); }

 private:
  struct Session;

  void serve(Connection& connection, const std::atomic<bool>& ended) const;
  void read(const std::shared_ptr<Session>& session) const;

  std::shared_ptr<RemoteAttentionEndpoint> server_;
  const KvLayout layout_;
  Listener listener_;
};

}  // namespace kvasir
