// Linear layers: packing stored rows into panels for an instruction set's kernels, and distributing products over
// threads.
#include "linear/linear.hpp"

#include <stdexcept>
#include <string>

#include "linear/input.hpp"
#include "linear/planes_pack.hpp"
#include "linear/weight_memory.hpp"
#include "simd/amx_tiles.hpp"

namespace kvasir {
namespace {

constexpr int kTasksPerThread = 4;
// fewer tokens are bound by memory: every further task starts its stream of weights cold
constexpr int kTokensPerTask = 8;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

/** Bytes of a segment: kernels prefetch the next one by whole cache lines. */
size_t padded_bytes(const Segment& segment) {
  constexpr size_t kLine = 64;
  return (segment.bytes() + kLine - 1) / kLine * kLine;
}

/** Divides `count` items into equal parts of at most `largest`, each but the last a multiple of `unit`. */
struct Parts {
  int count, size, parts;
  Parts(int things, int largest, int unit) : count(things) {
    int wanted = ceil_div(things, largest);
    size = ceil_div(ceil_div(things, wanted), unit) * unit;
    parts = ceil_div(things, size);
  }
  int begin(int part) const { return part * size; }
  int end(int part) const { return part + 1 == parts ? count : (part + 1) * size; }
};

std::string figures(int columns, const std::vector<SegmentSpec>& segments) {
  return "columns " + std::to_string(columns) + ", segments " + std::to_string(segments.size());
}

void check_specs(int columns, const std::vector<SegmentSpec>& segments, InputForm inputs) {
  if (columns <= 0 || segments.empty()) throw std::invalid_argument("Cannot create linear layer: it is empty: " + figures(columns, segments));
  for (const SegmentSpec& spec : segments) {
    if (spec.rows <= 0) throw std::invalid_argument("Cannot create linear layer: a segment has no rows: " + figures(columns, segments));
    int block = is_planar(spec.type) ? stored_plane_inputs(spec.type) : is_quantised(spec.type) ? kBlock : 1;
    if (columns % block != 0) {
      throw std::invalid_argument("Cannot create linear layer: quantised rows are whole blocks of " + std::to_string(block) + ": columns " + std::to_string(columns));
    }
    if (!is_quantised(spec.type) && is_integer(inputs)) {
      throw std::invalid_argument("Cannot create linear layer: int8 and i16 inputs need quantised weights: a segment of " +
                                  std::to_string(spec.rows) + " rows is float");
    }
  }
}

class PackedLinear final : public Linear {
 public:
  PackedLinear(Isa isa_, int columns_, const std::vector<SegmentSpec>& specs, InputForm inputs_)
      : kernel_(choose_kernel(isa_, inputs_)), memory_(lay_out(columns_, specs)) {
    isa = isa_;
    columns = columns_;
    inputs = inputs_;
    uint8_t* data = memory_.data();
    for (Segment& segment : segments_) {
      segment.data = data;
      data += padded_bytes(segment);
      rows += segment.rows;
    }
  }

  void pack_rows(int segment, int row, int count, const uint8_t* bytes) override {
    const Segment& target = segments_.at(static_cast<size_t>(segment));
    if (row < 0 || count < 0 || row + count > target.rows) {
      throw std::out_of_range("Cannot pack rows: outside the segment: rows " + std::to_string(row) + " to " +
                              std::to_string(row + count) + " of " + std::to_string(target.rows));
    }
    size_t step = stored_row_bytes(target.type, columns);
    for (int r = 0; r < count; r++) pack_row(target, row + r, bytes + step * static_cast<size_t>(r));
  }

  size_t bytes() const override {
    size_t total = 0;
    for (const Segment& segment : segments_) total += padded_bytes(segment);
    return total;
  }

  void read_row(int row, float* out) const override {
    for (const Segment& segment : segments_) {
      if (row < segment.rows) return unpack_row(segment, row, out);
      row -= segment.rows;
    }
    throw std::out_of_range("Cannot read weight row: past the last of " + std::to_string(rows));
  }

  void run(ThreadPool& pool, const void* input, int tokens, const float* bias, float* y, size_t ld) const override {
    if (tokens <= 0) return;
    Parts row_parts(tokens, kernel_.row_block, kernel_.row_unit);
    int largest = panels_of_task(pool.size(), tokens, row_parts.parts);
    std::vector<Parts> panel_parts;
    int tasks_of_row_part = 0;
    for (const Segment& segment : segments_) {
      panel_parts.emplace_back(segment.panels, largest, kernel_.panel_group);
      tasks_of_row_part += panel_parts.back().parts;
    }
    const size_t row_bytes = InputLayout::of(isa, inputs, columns).tile;
    pool.run(tasks_of_row_part * row_parts.parts, [&](int task, int) {
      int row_part = task / tasks_of_row_part;
      int part = task % tasks_of_row_part;
      size_t s = 0;
      int column = 0;
      for (; part >= panel_parts[s].parts; s++) {
        part -= panel_parts[s].parts;
        column += segments_[s].rows;
      }
      Product product{static_cast<const uint8_t*>(input), row_bytes, bias ? bias + column : nullptr, y + column, ld};
      kernel_.run(segments_[s], product, {panel_parts[s].begin(part), panel_parts[s].end(part), row_parts.begin(row_part), row_parts.end(row_part)});
    });
  }

 private:
  /** Fills segments_ and returns their bytes. */
  size_t lay_out(int columns_, const std::vector<SegmentSpec>& specs) {
    for (const SegmentSpec& spec : specs) {
      Order order = is_quantised(spec.type) ? kernel_.quantised : kernel_.floats;
      segments_.push_back({spec.type, order, spec.rows, columns_, ceil_div(columns_, kBlock), ceil_div(spec.rows, kPanel), nullptr});
    }
    return bytes();
  }

  /** Few enough tasks that handing them out costs nothing, and enough that threads finish together. */
  int panels_of_task(int threads, int tokens, int row_parts) const {
    int panels = 0;
    for (const Segment& segment : segments_) panels += segment.panels;
    if (threads == 1) return panels;
    int each = ceil_div(tokens, kTokensPerTask);
    int tasks = threads * (each < kTasksPerThread ? each : kTasksPerThread);
    return ceil_div(panels, ceil_div(tasks, row_parts));
  }

  KernelChoice kernel_;
  std::vector<Segment> segments_;
  WeightMemory memory_;
};

}  // namespace

std::unique_ptr<Linear> create_linear(Isa isa, int columns, const std::vector<SegmentSpec>& segments, InputForm inputs) {
  check_specs(columns, segments, inputs);
  return std::make_unique<PackedLinear>(isa, columns, segments, inputs);
}

namespace {

#if KVASIR_HAVE_AVX512
KernelChoice amx_kernel(InputForm inputs) {
#if KVASIR_HAVE_AMX
  if (!amx_emulated()) {
    if (inputs == InputForm::bf16) return {linear_bf16_amx, Order::pairs, Order::pairs, 512, 16, 2};
    return {linear_int8_amx, Order::quads, Order::rows, 128, 16, 1};
  }
#endif
  if (inputs == InputForm::bf16) return {linear_bf16_amx_emulated, Order::pairs, Order::pairs, 512, 16, 2};
  return {linear_int8_amx_emulated, Order::quads, Order::rows, 128, 16, 1};
}

KernelChoice avx512_kernel(InputForm inputs) {
  if (inputs == InputForm::bf16) return {linear_bf16_avx512, Order::pairs, Order::pairs, 256, 1, 2};
  if (inputs == InputForm::int8) return {linear_int8_avx512, Order::quads, Order::rows, 96, 1, 2};
  if (inputs == InputForm::i16) return {linear_i16_avx512, Order::quads, Order::rows, 96, 12, 1};
  return {linear_chain_avx512, Order::quads, Order::rows, 96, 1, 2};
}
#endif

#if KVASIR_HAVE_AVX2
KernelChoice avx2_kernel(InputForm inputs) {
  if (inputs == InputForm::int8) return {linear_int8_avx2, Order::quads, Order::rows, 96, 6, 1};
  if (inputs == InputForm::i16) return {linear_i16_avx2, Order::quads, Order::rows, 96, 4, 1};
  return {linear_chain_avx2, Order::quads, Order::rows, 256, 1, 2};
}
#endif

KernelChoice portable_kernel(InputForm inputs) {
  if (inputs == InputForm::int8) return {linear_int8_portable, Order::quads, Order::rows, 256, 1, 1};
  if (inputs == InputForm::i16) return {linear_i16_portable, Order::quads, Order::rows, 96, 3, 1};
  return {linear_chain_portable, Order::quads, Order::rows, 256, 1, 1};
}

}  // namespace

KernelChoice choose_kernel(Isa isa, InputForm inputs) {
#if KVASIR_HAVE_AVX512
  if (isa == Isa::amx && (inputs == InputForm::bf16 || inputs == InputForm::int8)) return amx_kernel(inputs);
  if (isa >= Isa::avx512) return avx512_kernel(inputs);
#endif
#if KVASIR_HAVE_AVX2
  if (isa == Isa::avx2) return avx2_kernel(inputs);
#endif
  if (isa != Isa::portable) throw std::invalid_argument("Cannot create linear layer: its instruction set was not compiled: " + std::to_string(static_cast<int>(isa)));
  return portable_kernel(inputs);
}

}  // namespace kvasir
