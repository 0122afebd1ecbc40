// Readers of lent pages: the keys travel to the rows, and the debtor's own threads compute.
#pragma once
#include "remote/query_frames.hpp"
#include "remote/server.hpp"

namespace kvasir {

/**
 * Reads the pages of a server of this process in place. Each query ends in `post`, which only a step of the debtor's
 * backend may call: it holds the threads. The reader does not keep the server, whose pool is the memory of its creditor:
 * queries after the end of the server are refused.
 */
class RemotePageReader final : public RemoteAttentionEndpoint {
 public:
  RemotePageReader(std::shared_ptr<Backend> debtor, const std::shared_ptr<RemoteAttentionServer>& server) : debtor_(std::move(debtor)), server_(server) {}
  void post(std::shared_ptr<RemoteQuery> query) override {
    const std::shared_ptr<RemoteAttentionServer> server = server_.lock();
    if (server == nullptr) query->end(RemoteQuery::State::refused);
    else server->answer_with(debtor_->pool, memory_, std::move(query));
  }
  /** The server belongs to its creditor. */
  void close() override {}
  bool reads_pages() const override { return true; }

 private:
  std::shared_ptr<Backend> debtor_;
  std::weak_ptr<RemoteAttentionServer> server_;
  GrowingMemory memory_;
};

/**
 * Reads the pages of a server in another process, which a client fetches for one attention op at a time: the memory is
 * that of the keys of one layer. All queries of an op over the same blocks share one fetch. Only a step of the debtor's
 * backend may call it, like a `RemotePageReader`. Rows travel instead if the pages exceed the longest answer, or are
 * refused: by a server that does not send pages, or because they are not lent.
 */
class RemotePageFetcher final : public RemoteAttentionEndpoint {
 public:
  RemotePageFetcher(std::shared_ptr<Backend> debtor, std::shared_ptr<RemoteAttentionEndpoint> client) : debtor_(std::move(debtor)), client_(std::move(client)) {}
  ~RemotePageFetcher() override { drop(); }
  void prepare(const RemoteQuery& query, uint64_t op) override;
  bool is_ready(const RemoteQuery& query) const override;
  void post(std::shared_ptr<RemoteQuery> query) override;
  /** The client belongs to the debtor's instance. */
  void close() override {}
  bool reads_pages() const override { return true; }

 private:
  std::shared_ptr<RemoteQuery> fetched(const RemoteQuery& query) const;
  void drop();

  std::shared_ptr<Backend> debtor_;
  std::shared_ptr<RemoteAttentionEndpoint> client_;
  uint64_t op_ = 0;
  std::vector<std::shared_ptr<RemoteQuery>> fetches_;  // of the op
  GrowingMemory memory_;
};

}  // namespace kvasir
