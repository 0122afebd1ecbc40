// Steps of several batches over model replicas: while attention of one batch is computed, the others compute their
// slices (Lamina, rotational staggered pipelining).
#pragma once
#include <vector>

#include "program/program.hpp"

namespace kvasir {

/** A step of one batch and where its samples go. Its program runs no other step meanwhile. */
struct ProgramRun {
  Program* program;
  const StepView* step;
  SamplingResult result;
};

/** The next slice of a batch, and the replica that runs it. */
struct SliceTurn {
  int batch;
  int replica;
};

/**
 * Runs the steps of several batches. A replica is the threads of a backend; all replicas read the same weights. Each
 * replica runs its turns in their order, and a turn begins when the batch's turns before it have ended. `turns` names
 * each slice of each batch once; without turns the first replica runs all slices, of each batch in turn. Entries of the
 * result are false if `abort` was set: that step can run again, and nothing of it counts as written.
 * @throws std::runtime_error if a step or the turns are invalid
 */
std::vector<bool> run_staggered(KvPool& pool, const std::vector<ProgramRun>& runs, const std::vector<std::shared_ptr<Backend>>& replicas,
                                const std::vector<SliceTurn>& turns, const int32_t* abort);

}  // namespace kvasir
