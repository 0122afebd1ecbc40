// Fetches pages of another process with queries that have no nodes, and attends to them here.
#include "remote/reader.hpp"

#include <algorithm>

namespace kvasir {

void RemotePageFetcher::prepare(const RemoteQuery& query, uint64_t op) {
  if (op != op_) drop();
  op_ = op;
  if (query.layout.page_bytes() * query.blocks.size() > kAnswerBytesMost || fetched(query) != nullptr) return;
  auto pages = std::make_shared<RemoteQuery>();
  pages->isa = query.isa;
  pages->layout = query.layout;
  pages->heads = query.heads;
  pages->layer = query.layer;
  pages->rows = 1;  // a query has a row; the server does not read this one
  pages->query.resize(query_bytes(query.isa, query.layout.type, query.heads, query.layout.head_dim, 1));
  pages->keys = query.keys;
  pages->blocks = query.blocks;
  pages->answered = query.answered;
  pages->open();
  fetches_.push_back(pages);
  client_->post(std::move(pages));
}

bool RemotePageFetcher::is_ready(const RemoteQuery& query) const {
  const auto pages = fetched(query);
  return pages == nullptr || !pages->is_open();
}

void RemotePageFetcher::post(std::shared_ptr<RemoteQuery> query) {
  const auto pages = fetched(*query);
  if (pages == nullptr || pages->state.load(std::memory_order_acquire) != RemoteQuery::State::answered) {
    client_->post(std::move(query));
    return;
  }
  ThreadPool& threads = debtor_->pool;
  const int first_block = query->keys.front().first_block;
  ServedQuery served(query, pages->answer, first_block, find_pages(*query, [](int, size_t block) { return static_cast<int32_t>(block); }), threads.size());
  AttentionPieces& pieces = served.pieces();
  const size_t workspace_bytes = pieces.workspace_bytes();
  uint8_t* workspaces = memory_.at_least(workspace_bytes * threads.size());
  threads.run(pieces.tasks(), [&](int task, int thread) { served.run_task(task, workspaces + workspace_bytes * thread, [] { return true; }); });
  for (int merge = 0; merge < pieces.merges(); merge++) pieces.run_merge(merge, workspaces);
  query->end(RemoteQuery::State::answered);
}

/** The fetch of the query's blocks in this op; null if there is none. */
std::shared_ptr<RemoteQuery> RemotePageFetcher::fetched(const RemoteQuery& query) const {
  const auto same_keys = [](const QueryKeys& a, const QueryKeys& b) { return a.loan == b.loan && a.first_block == b.first_block && a.blocks == b.blocks; };
  const auto found = std::find_if(fetches_.begin(), fetches_.end(), [&](const auto& fetch) {
    return fetch->blocks == query.blocks && std::equal(fetch->keys.begin(), fetch->keys.end(), query.keys.begin(), query.keys.end(), same_keys);
  });
  return found == fetches_.end() ? nullptr : *found;
}

/** A fetch that still runs is refused or discarded where it is. */
void RemotePageFetcher::drop() {
  for (const auto& fetch : fetches_) fetch->dropped.store(true, std::memory_order_relaxed);
  fetches_.clear();
}

}  // namespace kvasir
