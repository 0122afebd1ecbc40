// Reads lent pages of a server of this process with the debtor's own threads: the keys travel to the rows.
#pragma once
#include "remote/server.hpp"

namespace kvasir {

/** Each query ends in `post`, which only a step of the debtor's backend may call: it holds the threads. */
class RemotePageReader final : public RemoteAttentionEndpoint {
 public:
  RemotePageReader(std::shared_ptr<Backend> debtor, std::shared_ptr<RemoteAttentionServer> server) : debtor_(std::move(debtor)), server_(std::move(server)) {}
  void post(std::shared_ptr<RemoteQuery> query) override { server_->answer_with(debtor_->pool, memory_, std::move(query)); }
  /** The server belongs to its creditor. */
  void close() override {}
  bool reads_in_place() const override { return true; }

 private:
  std::shared_ptr<Backend> debtor_;
  std::shared_ptr<RemoteAttentionServer> server_;
  GrowingMemory memory_;
};

}  // namespace kvasir
