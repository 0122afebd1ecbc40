// Ops that bring rows of the residual stream from pages of a pool, and to them: between programs that each run a range of a model's layers.
#pragma once
#include "program/program.hpp"

namespace kvasir {

/** WAIT_ROWS: the rows that the layers before left, as soon as they have come. Of a step without pages for them the buffer stays as it is. */
std::unique_ptr<ProgramOp> decode_wait_rows(EncodedReader& in, ProgramPlan& plan);

/** ROWS_READY: what these layers made of the rows lies in its pages, and leaves at once. Of a step without pages for them nothing does. */
std::unique_ptr<ProgramOp> decode_rows_ready(EncodedReader& in, ProgramPlan& plan);

/** Bytes of rows to their pages. */
void write_rows(const RowPagesView& rows, const void* from, size_t bytes);

/** Throws an error that begins with `what` where there is no such page, or so many bytes have no room. */
void check_row_pages(const RowPagesView& rows, size_t bytes, const char* what);

/** Throws where a step has pages for rows that the program does not take or leave, or others than its rows need. */
void check_row_pages(const StepView& step, const ProgramPlan& plan);

}  // namespace kvasir
