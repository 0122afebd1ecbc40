// Ops that read and write rows of the residual stream in pages of a pool, between programs that each run a range of a
// model's layers.
#pragma once
#include "program/program.hpp"

namespace kvasir {

/**
 * WAIT_ROWS: copies the rows of the previous layers once they arrive. Without pages for them in the step, the buffer is
 * unchanged.
 */
std::unique_ptr<ProgramOp> decode_wait_rows(EncodedReader& in, ProgramPlan& plan);

/**
 * ROWS_READY: copies the rows to their pages and releases these for sending. Without pages for them in the step, it
 * does nothing.
 */
std::unique_ptr<ProgramOp> decode_rows_ready(EncodedReader& in, ProgramPlan& plan);

/** Writes `bytes` bytes of rows to their pages. */
void write_rows(const RowPagesView& rows, const void* from, size_t bytes);

/**
 * @throws std::runtime_error, beginning with `what`, if a page does not exist or the pages hold fewer than `bytes`
 * bytes
 */
void check_row_pages(const RowPagesView& rows, size_t bytes, const char* what);

/** @throws std::runtime_error if the step's pages for rows do not match the program's rows */
void check_row_pages(const StepView& step, const ProgramPlan& plan);

}  // namespace kvasir
