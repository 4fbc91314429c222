#include "sim/run/explain_cause.hpp"

#include <fmt/format.h>

#include "sim/core/units_text.hpp"

namespace oomcast {
namespace {

using logs::FailureKind;
using logs::Figure;
using logs::Phase;

// Other processes of less are displays and monitors.
constexpr Bytes kMuch{std::int64_t{256} << 20};

std::optional<Leaf> leaf_of(Phase phase) {
  switch (phase) {
    case Phase::kContext:
      return Leaf::kSystemContext;
    case Phase::kCommunicators:
      return Leaf::kCommNccl;
    case Phase::kLoad:
      return Leaf::kModelWeights;
    case Phase::kProfile:
    case Phase::kRuntime:
      return Leaf::kRuntimeActivations;
    case Phase::kKv:
      return Leaf::kKvPool;
    case Phase::kCapture:
      return Leaf::kGraphPool;
    case Phase::kWarmup:
      return Leaf::kRuntimeLogits;
    case Phase::kReady:
      break;
  }
  return std::nullopt;
}

std::string oom_reason(const logs::TorchOom& oom, const std::optional<Bytes>& others) {
  std::string text = fmt::format("{} were asked for", format_bytes(*oom.tried));
  if (oom.free) {
    text += fmt::format(", {} were free", format_bytes(*oom.free));
  }
  if (oom.is_fragmented()) {
    return text + fmt::format(" and {} lay unused in PyTorch's segments: enough memory, in pieces",
                              format_bytes(*oom.unallocated));
  }
  if (oom.allowed && oom.process && *oom.process + *oom.tried > *oom.allowed) {
    return text + fmt::format("; this process may take {} only", format_bytes(*oom.allowed));
  }
  if (others && *others >= kMuch) {
    return text + fmt::format("; other processes hold {}", format_bytes(*others));
  }
  if (oom.free && *oom.tried <= *oom.free) {
    return text + ": there was room; the driver could not give it";
  }
  return oom.free ? text + ": the card is full" : text;
}

// vLLM's check of free memory before it starts.
void explain_start_check(const logs::EngineRun& run, Cause& cause) {
  const auto* free = run.nearest(Figure::kFreeAtStart, cause.failure->rank);
  const auto* requested = run.nearest(Figure::kRequested, cause.failure->rank);
  const auto* total = run.nearest(Figure::kTotal, cause.failure->rank);
  if (free == nullptr || requested == nullptr) {
    return;
  }
  cause.short_by = std::max(Bytes{0}, requested->bytes() - free->bytes());
  cause.reason = fmt::format("{} are free at the start, {} are wanted", format_bytes(free->bytes()),
                             format_bytes(requested->bytes()));
  if (total != nullptr) {
    cause.others = total->bytes() - free->bytes();
    cause.reason += fmt::format("; {} are in use by this process' own context and by others",
                                format_bytes(*cause.others));
  }
}

void explain_small_cache(const logs::EngineRun& run, Cause& cause) {
  const auto* available = run.nearest(Figure::kAvailableKv, cause.failure->rank);
  const auto* needed = run.nearest(Figure::kKvNeeded, cause.failure->rank);
  if (needed != nullptr && available != nullptr) {
    cause.short_by = needed->bytes() - available->bytes();
    cause.reason = fmt::format("one request of full length needs {}, the cache has {}",
                               format_bytes(needed->bytes()), format_bytes(available->bytes()));
  } else if (available != nullptr && available->value < 0) {
    cause.short_by = -available->bytes();
    cause.reason = fmt::format("the budget is overdrawn by {}", format_bytes(*cause.short_by));
  } else {
    cause.reason = "nothing is left of the budget for the KV cache";
  }
}

}  // namespace

std::optional<Cause> find_cause(const logs::EngineRun& run) {
  Cause cause;
  cause.failure = run.cause();
  if (cause.failure == nullptr) {
    return std::nullopt;
  }
  const logs::Failure& failure = *cause.failure;
  cause.leaf = leaf_of(failure.phase);
  if (failure.oom) {
    cause.others = failure.oom->other_processes();
    cause.short_by = failure.oom->short_by();
    cause.fragmented = failure.oom->is_fragmented();
    cause.reason = oom_reason(*failure.oom, cause.others);
    return cause;
  }
  switch (failure.kind) {
    case FailureKind::kKvTooSmall:
      explain_small_cache(run, cause);
      break;
    case FailureKind::kStartupOom:
      if (failure.phase == Phase::kContext) {
        explain_start_check(run, cause);
      }
      break;
    case FailureKind::kConfigRejected:
      cause.leaf = std::nullopt;
      cause.reason = "the engine refuses the configuration";
      break;
    case FailureKind::kRuntimeOom:
      break;
    case FailureKind::kEngineError:
      cause.leaf = std::nullopt;
      cause.reason = "the engine died; no line of the log says of what";
      break;
  }
  return cause;
}

}  // namespace oomcast
