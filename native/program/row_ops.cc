// Rows are consecutive bytes across pages. The reader runs on the same architecture.
#include "program/row_ops.hpp"

#include <algorithm>
#include <cstring>

namespace kvasir {
namespace {

const Buffer* read_rows_buffer(EncodedReader& in, const ProgramPlan& plan, const char* what) {
  const Buffer& buffer = plan.buffers[in.integer(what, 0, static_cast<int64_t>(plan.buffers.size()))];
  if (buffer.kind != BufferKind::f32 || buffer.logit_rows) EncodedReader::refuse(std::string(what) + " is not float32 rows of the tokens");
  return &buffer;
}

size_t row_bytes(const Buffer& buffer, int tokens) { return static_cast<size_t>(tokens) * buffer.columns * sizeof(float); }

/** Calls `each` with every page and its part of the `bytes` bytes. */
template <class Each>
void for_each_page(const RowPagesView& rows, size_t bytes, const Each& each) {
  const size_t page_bytes = rows.pool->layout.page_bytes();
  for (size_t i = 0; i * page_bytes < bytes; i++) each(rows.pool->page(rows.pages[i]), i * page_bytes, std::min(page_bytes, bytes - i * page_bytes));
}

struct WaitRows final : ProgramOp {
  const Buffer* out;

  WaitRows(EncodedReader& in, ProgramPlan& plan) : out(read_rows_buffer(in, plan, "waitRows.out")) { plan.rows_in = out; }
  void run(const StepState& s) const override {
    const RowPagesView& rows = s.step->rows_in.rows;
    if (!rows.pool || !s.waits->await_rows(*s.backend, s.abort)) return;
    for_each_page(rows, row_bytes(*out, s.tokens), [&](const uint8_t* page, size_t from, size_t bytes) { std::memcpy(out->data + from, page, bytes); });
  }
};

struct RowsReady final : ProgramOp {
  const Buffer* x;

  RowsReady(EncodedReader& in, ProgramPlan& plan) : x(read_rows_buffer(in, plan, "rowsReady.x")) { plan.rows_out = x; }
  void run(const StepState& s) const override {
    const RowPagesView& rows = s.step->rows_out;
    if (!rows.pool) return;
    write_rows(rows, x->data, row_bytes(*x, s.tokens));
    // A step aborted earlier writes nothing and does not count as progress, so its queued pages wait.
    rows.pool->progress.begin();
    rows.pool->progress.end();
  }
};

}  // namespace

std::unique_ptr<ProgramOp> decode_wait_rows(EncodedReader& in, ProgramPlan& plan) { return std::make_unique<WaitRows>(in, plan); }

std::unique_ptr<ProgramOp> decode_rows_ready(EncodedReader& in, ProgramPlan& plan) { return std::make_unique<RowsReady>(in, plan); }

void write_rows(const RowPagesView& rows, const void* from, size_t bytes) {
  const auto* begin = static_cast<const uint8_t*>(from);
  for_each_page(rows, bytes, [begin](uint8_t* page, size_t at, size_t part) { std::memcpy(page, begin + at, part); });
}

void check_row_pages(const RowPagesView& rows, size_t bytes, const char* what) {
  const size_t capacity = rows.pages.size * rows.pool->layout.page_bytes();
  const auto refuse = [what](const std::string& why) { throw std::runtime_error(std::string(what) + " " + why); };
  if (capacity < bytes) refuse("have pages of " + std::to_string(capacity) + " bytes for " + std::to_string(bytes));
  for (size_t i = 0; i < rows.pages.size; i++)
    if (rows.pages[i] < 0 || rows.pages[i] >= rows.pool->pages) refuse("have no such page: " + std::to_string(rows.pages[i]));
}

void check_row_pages(const StepView& step, const ProgramPlan& plan) {
  const auto check = [&step](const RowPagesView& rows, const Buffer* buffer, const char* what) {
    if (!rows.pool) return;
    if (buffer == nullptr) throw std::runtime_error(std::string(what) + " have pages, and the program has no such rows");
    check_row_pages(rows, row_bytes(*buffer, static_cast<int>(step.tokens.size)), what);
  };
  check(step.rows_in.rows, plan.rows_in, "Cannot run the step: rowsIn");
  check(step.rows_out, plan.rows_out, "Cannot run the step: rowsOut");
}

}  // namespace kvasir
