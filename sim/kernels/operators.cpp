#include "sim/kernels/operators.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "sim/core/error.hpp"
#include "sim/kernels/buffer.hpp"
#include "sim/kernels/cub.hpp"
#include "sim/kernels/torch_reduce.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kBool = 1;
constexpr std::int64_t kHalf = 2;
constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kInt64 = 8;
constexpr std::int64_t kValueAndIndex = 16;  // float and int64, padded

constexpr Reduction kSum{kFloat, kFloat, kFloat, true};
constexpr Reduction kAny{kFloat, kBool, kBool, true};
constexpr Reduction kMaxWithIndex{kFloat, kValueAndIndex, kFloat, false};
constexpr Reduction kArgMax{kFloat, kValueAndIndex, kInt64, false};

// One operator at one shape on one GPU, while its calls are written down.
class Recorder {
 public:
  Recorder(RowShape shape, const models::GpuSpec& gpu) : shape_(shape), gpu_(gpu) {}

  // A tensor of the input's shape, or of one element a row.
  std::size_t full(std::int64_t bytes) { return calls_.allocate(elements() * bytes); }
  std::size_t column(std::int64_t bytes) { return calls_.allocate(shape_.rows * bytes); }
  std::size_t tensor(std::int64_t elements, std::int64_t bytes) {
    return calls_.allocate(product(elements, bytes));
  }
  void free(std::size_t made) { calls_.free(made); }

  void reduce(const Reduction& reduction) { reduction_scratch(calls_, shape_, reduction, gpu_); }
  // Returns the values; the indices stay.
  std::size_t sort(std::int64_t key_bytes) {
    const std::size_t values = full(key_bytes);
    full(kInt64);
    sort_scratch(calls_, shape_, key_bytes, gpu_);
    return values;
  }
  void topk(std::int64_t k) { topk_calls(calls_, shape_, k, gpu_); }
  // Of one row: a device-wide scan in pieces of at most 2^30; more rows need no scratch.
  void scan();

  [[nodiscard]] RowShape shape() const { return shape_; }
  [[nodiscard]] std::int64_t elements() const { return shape_.rows * shape_.cols; }
  [[nodiscard]] std::vector<AllocatorCall> take() { return calls_.take(); }

 private:
  RowShape shape_;
  const models::GpuSpec& gpu_;
  CallList calls_;
};

void nothing(Recorder& /*op*/) {}

void sort_float(Recorder& op) { op.sort(kFloat); }

void float_output(Recorder& op) { op.full(kFloat); }
void half_output(Recorder& op) { op.full(kHalf); }

// The conversion is a tensor of its own, dropped once the operator has read it.
void convert_then_float_output(Recorder& op) {
  const std::size_t converted = op.full(kFloat);
  op.full(kFloat);
  op.free(converted);
}

void sum(Recorder& op) {
  op.column(kFloat);
  op.reduce(kSum);
}

void log_sum_exp(Recorder& op) {
  const std::size_t maxima = op.column(kFloat);
  op.reduce(kSum);  // a maximum carries what a sum does
  const std::size_t magnitudes = op.column(kFloat);
  op.free(op.column(kBool));  // where the maximum is infinite
  op.free(magnitudes);
  const std::size_t exponentials = op.full(kFloat);
  sum(op);
  op.free(exponentials);
  op.free(maxima);
}

void mean_of_squares(Recorder& op) {
  const std::size_t squares = op.full(kFloat);
  sum(op);
  op.free(squares);
}

void layer_norm(Recorder& op) {
  op.full(kHalf);
  const std::size_t mean = op.column(kFloat);
  const std::size_t inverse_deviation = op.column(kFloat);
  op.free(inverse_deviation);
  op.free(mean);
}

void rms_norm(Recorder& op) {
  op.full(kHalf);
  op.free(op.column(kFloat));
}

void silu_and_multiply(Recorder& op) {
  const std::int64_t elements = op.shape().rows * (op.shape().cols / 2);
  if (elements == 0) {
    return;
  }
  const std::size_t activated = op.tensor(elements, kHalf);
  op.tensor(elements, kHalf);
  op.free(activated);
}

void embedding(Recorder& op) {
  constexpr std::int64_t kTokens = 256;  // of the recordings
  op.tensor(product(kTokens, op.shape().cols), kHalf);
}

void contiguous_transpose(Recorder& op) {
  // The transpose of a single row or column is contiguous as it is.
  if (op.shape().rows > 1 && op.shape().cols > 1) {
    op.full(kFloat);
  }
}

struct NamedOperator {
  std::string_view name;
  void (*record)(Recorder&);
};

constexpr NamedOperator kOperators[] = {
    {"sort(dim=-1)", sort_float},
    {"sort(dim=-1,descending)", sort_float},
    {"sort(dim=-1,stable)", sort_float},
    {"sort(dim=-1) bfloat16", [](Recorder& op) { op.sort(kHalf); }},
    {"argsort(dim=-1)", [](Recorder& op) { op.free(op.sort(kFloat)); }},
    {"softmax(dim=-1)", float_output},
    {"softmax(dim=-1,float32) from bfloat16", convert_then_float_output},
    {"log_softmax(dim=-1)", float_output},
    {"log_softmax(dim=-1,float32) from bfloat16", convert_then_float_output},
    {"to(float32) from bfloat16", float_output},
    {"argmax(dim=-1)",
     [](Recorder& op) {
       op.column(kInt64);
       op.reduce(kArgMax);
     }},
    {"max(dim=-1)",
     [](Recorder& op) {
       op.column(kFloat);
       op.column(kInt64);
       op.reduce(kMaxWithIndex);
     }},
    {"logsumexp(dim=-1)", log_sum_exp},
    {"cumsum(dim=-1)",
     [](Recorder& op) {
       op.full(kFloat);
       op.scan();
     }},
    {"cumsum(dim=-1,out=self)", [](Recorder& op) { op.scan(); }},
    {"exponential_()", nothing},
    {"div_(x)", nothing},
    {"div_(column)", nothing},
    {"x < column", [](Recorder& op) { op.full(kBool); }},
    {"masked_fill_(mask)", nothing},
    {"where(mask,x,y)", float_output},
    {"gather(1,column)", [](Recorder& op) { op.column(kFloat); }},
    {"gather(1,full)", float_output},
    {"scatter_(1,full)", nothing},
    {"scatter_add_(1,full) int64", nothing},
    {"bincount-like scatter_add_ int64", nothing},
    {"sum(dim=-1)", sum},
    {"mean(dim=-1)", sum},
    {"any(dim=-1)",
     [](Recorder& op) {
       op.column(kBool);
       op.reduce(kAny);
     }},
    {"pow(2).mean(-1,keepdim)", mean_of_squares},
    {"contiguous() of a transpose", contiguous_transpose},
    {"clone()", float_output},
    {"empty_like()", float_output},
    {"rand_like() bfloat16", half_output},
    {"randn_like()", float_output},
    {"cat(dim=0) of 4", [](Recorder& op) { op.tensor(product(4, op.elements()), kHalf); }},
    {"cat(dim=1) of 2", [](Recorder& op) { op.tensor(product(2, op.elements()), kHalf); }},
    {"index_select(0)", half_output},
    {"index [rows]", half_output},
    {"index_put_ rows", nothing},
    {"silu(gate)*up bfloat16", silu_and_multiply},
    {"rms_norm bfloat16", rms_norm},
    {"layer_norm bfloat16", layer_norm},
    {"embedding bfloat16", embedding},
};

void Recorder::scan() {
  if (shape_.rows > 1) {
    return;
  }
  constexpr std::int64_t kPiece = std::int64_t{1} << 30;
  calls_.allocate_and_free(scan_storage(std::min(shape_.cols, kPiece)));
  for (std::int64_t done = kPiece; done < shape_.cols; done += kPiece) {
    const std::size_t first = calls_.allocate(kFloat);  // carried from the piece before
    calls_.allocate_and_free(scan_storage(std::min(shape_.cols - done, kPiece)));
    calls_.free(first);
  }
}

// K of "topk(K)".
std::optional<std::int64_t> topk_of(std::string_view name) {
  constexpr std::string_view kStart = "topk(";
  if (!name.starts_with(kStart) || !name.ends_with(')')) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kStart.size(), name.size() - kStart.size() - 1);
  std::int64_t k = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), k);
  const bool whole = error == std::errc{} && end == digits.data() + digits.size();
  return whole && digits.front() != '-' ? std::optional(k) : std::nullopt;
}

void check_shape(std::string_view name, RowShape shape, std::int64_t k,
                 const models::GpuSpec& gpu) {
  constexpr std::int64_t kMostPerGpu = 1 << 16;
  ShapeCheck check{std::string{name}};
  check.positive("rows", shape.rows)
      .positive("cols", shape.cols)
      .between("multiprocessors", gpu.sm_count, 1, kMostPerGpu)
      .between("threads per multiprocessor", gpu.threads_per_sm, 1, kMostPerGpu);
  check.raise_if_any();
  check.between("rows x cols", detail::checked_mul(shape.rows, shape.cols), 1);
  if (name.find("sort") != std::string_view::npos) {
    check.between("cols", shape.cols, 1, std::numeric_limits<std::int32_t>::max());
  }
  check.between("k", k, 1, shape.cols);
  check.raise_if_any();
}

}  // namespace

std::vector<AllocatorCall> operator_calls(std::string_view name, RowShape shape,
                                          const models::GpuSpec& gpu) {
  const std::optional<std::int64_t> k = topk_of(name);
  const auto* const found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                         [&](const NamedOperator& op) { return op.name == name; });
  if (!k && found == std::end(kOperators)) {
    throw ConfigError(Problem{"operator", "", std::string{name}, "a recorded operator or topk(K)",
                              did_you_mean(name, operator_names())});
  }
  check_shape(name, shape, k.value_or(1), gpu);
  Recorder recorder(shape, gpu);
  if (k) {
    recorder.topk(*k);
  } else {
    found->record(recorder);
  }
  return recorder.take();
}

std::vector<std::string> operator_names() {
  std::vector<std::string> names;
  for (const NamedOperator& op : kOperators) {
    names.emplace_back(op.name);
  }
  return names;
}

}  // namespace oomcast::kernels
