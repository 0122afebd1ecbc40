// The ops of a model worker, which leaves attention to attention workers: SEND_Q, SEND_KV and WAIT_PARTIAL (Lamina,
// section 4).
#pragma once
#include <memory>

#include "program/program.hpp"

namespace kvasir {

std::unique_ptr<ProgramOp> decode_send_q(EncodedReader& in, ProgramPlan& plan);
std::unique_ptr<ProgramOp> decode_send_kv(EncodedReader& in, ProgramPlan& plan);
std::unique_ptr<ProgramOp> decode_wait_partial(EncodedReader& in, ProgramPlan& plan);

/**
 * @throws std::runtime_error unless the step names as many attention workers as can share the program's KV heads
 * equally, or one for each sequence that has its blocks and pages
 */
void check_attention_workers(const StepView& step, const ProgramPlan& plan, const KvPool& pool);

}  // namespace kvasir
