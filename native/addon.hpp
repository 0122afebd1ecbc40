// What the files of the addon share: the registries, and the functions that each file binds. Include <napi.h> first.
#pragma once
#include "addon_arguments.hpp"
#include "program.hpp"

namespace kvasir {

/** A linear layer beside the shape it was made of, to check packing against. */
struct BoundLinear {
  std::shared_ptr<Linear> linear;
  std::vector<SegmentSpec> segments;
};

/** Several threads load the addon: one set of objects serves them all. Never destroyed, since threads may outlive the main one's exit. */
struct Registries {
  Registry<Team> teams{"backend"};
  Registry<BoundLinear> linears{"linear layer"};
  Registry<const FloatVector> vectors{"vector"};
  Registry<KvPool> pools{"KV pool"};
  Registry<Program> programs{"program"};

  void forget_thread() {
    programs.forget_thread();
    pools.forget_thread();
    vectors.forget_thread();
    linears.forget_thread();
    teams.forget_thread();
  }
};

Registries& registries();

void bind_weights(Napi::Env env, Napi::Object exports);
void bind_programs(Napi::Env env, Napi::Object exports);
void bind_benches(Napi::Env env, Napi::Object exports);

}  // namespace kvasir
